package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Job is a workload: a process tree with CUDA. It lives on across dump and restore, on any
// host.
type Job struct {
	t   *testing.T
	PID int // of the root, before and after a restore
	dir string
	// Dirs are the folders to which the CUDA processes report their status.
	Dirs []string
}

// Status is what a CUDA process of a workload reports after each tick.
type Status struct {
	PID  int `json:"pid"`
	Tick int `json:"tick"`
	GPUs []struct {
		UUID string `json:"uuid"`
		PCI  string `json:"pci"`
	} `json:"gpus"`
	Bad int `json:"bad"`
}

// Start starts cudawork and waits until it ticks. For several processes, args must have
// --procs or --ranks with the same number.
func (h *Host) Start(processes int, args ...string) *Job {
	h.t.Helper()
	return h.StartUnder(nil, processes, args...)
}

// StartUnder is [Host.Start] below another command. That command gets the command line of
// cudawork as its arguments and is the root of the tree.
func (h *Host) StartUnder(parent []string, processes int, args ...string) *Job {
	h.t.Helper()
	return h.StartWith(nil, parent, processes, args...)
}

// StartWith is [Host.StartUnder] for a job that spawn starts, if it is not nil. It gets the
// command line and returns the pid of the root.
func (h *Host) StartWith(spawn func(command []string) int, parent []string, processes int, args ...string) *Job {
	h.t.Helper()
	job := h.newJob(processes)
	work := Artefact(h.t, "make workload", "build", "workload", "cudawork")
	command := append(append(slices.Clone(parent), work, "--dir", job.dir), args...)
	if spawn == nil {
		spawn = func(command []string) int { return h.Spawn(job.dir, command[0], command[1:]...) }
	}
	job.PID = spawn(command)
	job.WaitTicks(3)
	return job
}

// SpinModes are the ways of cudawork's --spin in which threads synchronize with the GPU.
var SpinModes = []string{"stream-sync", "event-sync", "ctx-sync", "stream-query", "event-query"}

// ReadPID reads a pid from a file; 0 if there is none yet.
func ReadPID(file string) int {
	text, err := os.ReadFile(file)
	pid, numberErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || numberErr != nil {
		return 0
	}
	return pid
}

// StartProgram is [Host.Start] for a copy of cudawork with another name.
func (h *Host) StartProgram(program string, processes int, args ...string) *Job {
	h.t.Helper()
	job := h.newJob(processes)
	job.PID = h.Spawn(job.dir, program, append([]string{"--dir", job.dir}, args...)...)
	job.WaitTicks(3)
	return job
}

func (h *Host) newJob(processes int) *Job {
	h.t.Helper()
	dir := h.t.TempDir()
	job := &Job{t: h.t, dir: dir, Dirs: []string{dir}}
	if processes > 1 {
		job.Dirs = nil
		for i := range processes {
			job.Dirs = append(job.Dirs, filepath.Join(dir, "rank-"+strconv.Itoa(i)))
		}
	}
	return job
}

// reap waits for a program. To wait for it before it has ended would take its stops from a tracer in this
// process.
func reap(cmd *exec.Cmd) {
	if p, err := proc.Open(cmd.Process.Pid); err == nil {
		_ = p.WaitExit(context.Background())
		p.Close()
	}
	_ = cmd.Wait()
}

// Spawn starts a program so that criu can dump it: in a session of its own, with standard
// streams that exist inside the namespaces. If the test fails, its stderr is shown.
func (h *Host) Spawn(dir, name string, args ...string) int {
	h.t.Helper()
	log, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	defer null.Close()
	cmd := h.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go reap(cmd)
	h.t.Cleanup(func() {
		KillGroup(cmd.Process.Pid)
		if data, _ := os.ReadFile(log.Name()); h.t.Failed() && len(data) > 0 {
			h.t.Logf("stderr of %s:\n%s", filepath.Base(name), data)
		}
	})
	return cmd.Process.Pid
}

// KillGroup ends a group of processes, and waits until it is gone: what still ends may write into a folder
// that is removed next.
func KillGroup(leader int) {
	for begin := time.Now(); unix.Kill(-leader, unix.SIGKILL) == nil && time.Since(begin) < Soon/4; {
		time.Sleep(5 * time.Millisecond)
	}
}

// For returns the job for another test or subtest, with only its first processes.
func (j *Job) For(t *testing.T, processes int) *Job {
	return &Job{t: t, PID: j.PID, Dirs: j.Dirs[:processes]}
}

// Status reads the last status that a CUDA process of the job has reported.
func (j *Job) Status(process int) (Status, error) {
	var s Status
	data, err := os.ReadFile(filepath.Join(j.Dirs[process], "status"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// MustStatus is [Job.Status] that fails the test on an error.
func (j *Job) MustStatus(process int) Status {
	j.t.Helper()
	s, err := j.Status(process)
	if err != nil {
		j.t.Fatal(err)
	}
	return s
}

// pid returns the pid of a CUDA process of the job as the test sees it. The process itself
// reports its pid inside the container.
func (j *Job) pid(process int) int {
	j.t.Helper()
	inside := j.MustStatus(process).PID
	pids, err := proc.Tree(j.PID)
	if err != nil {
		j.t.Fatal(err)
	}
	for _, pid := range pids {
		if status, err := proc.ReadStatus(pid); err == nil && status.ImagePID() == inside {
			return pid
		}
	}
	j.t.Fatalf("process %d of the job, pid %d where it runs, is not in the tree of process %d", process, inside, j.PID)
	return 0
}

// Ticks returns the counter of every CUDA process.
func (j *Job) Ticks() []int {
	ticks := make([]int, len(j.Dirs))
	for i := range j.Dirs {
		if s, err := j.Status(i); err == nil {
			ticks[i] = s.Tick
		}
	}
	return ticks
}

// WaitTicks waits until every process has ticked n times more.
func (j *Job) WaitTicks(n int) {
	j.t.Helper()
	from := j.Ticks()
	ticked := false
	defer func() {
		if !ticked {
			ShowThreads(j.t)
		}
	}()
	Eventually(j.t, Soon, fmt.Sprintf("every process of the job ticks %d times from %v", n, from), func() bool {
		for i, tick := range j.Ticks() {
			if tick < from[i]+n {
				return false
			}
		}
		return true
	})
	ticked = true
}

// Check makes every process compare all its GPU memory with the expected content.
func (j *Job) Check() {
	j.t.Helper()
	for i, dir := range j.Dirs {
		request := filepath.Join(dir, "check")
		if err := os.WriteFile(request, nil, 0o600); err != nil {
			j.t.Fatal(err)
		}
		Eventually(j.t, 6*Soon, "the job checks its memory", func() bool { return !Exists(request) })
		var checked struct{ Tick, Bad, Words int }
		data, err := os.ReadFile(filepath.Join(dir, "checked"))
		if err == nil {
			err = json.Unmarshal(data, &checked)
		}
		if err != nil || checked.Bad != 0 || checked.Words == 0 {
			j.t.Fatalf("process %d of the job: GPU memory is not what it must be: %s %v", i, data, err)
		}
		if s := j.MustStatus(i); s.Bad != 0 {
			j.t.Fatalf("process %d of the job saw wrong GPU memory: %+v", i, s)
		}
	}
}

// Runs fails the test unless the job goes on with its memory intact and no thread is
// stopped.
func (j *Job) Runs() {
	j.t.Helper()
	j.WaitTicks(3)
	j.Check()
	Eventually(j.t, Soon, "no thread of the job is stopped", func() bool { // the last one may go on after the one that ticks
		for i := range j.Dirs {
			for _, state := range ThreadStates(j.t, j.pid(i)) {
				if state == 'T' || state == 't' {
					return false
				}
			}
		}
		return true
	})
}

// Gone reports whether the pid of the root is free.
func (j *Job) Gone() bool { return processState(j.PID) == 0 }

// Alive reports whether the root of the job exists and is not a zombie.
func (j *Job) Alive() bool { return processState(j.PID) != 0 && processState(j.PID) != 'Z' }

// Stopped reports whether every thread of every CUDA process is stopped.
func (j *Job) Stopped() bool {
	pids := []int{j.PID} // of a job without CUDA
	if len(j.Dirs) > 0 {
		pids = nil
	}
	for i := range j.Dirs {
		pids = append(pids, j.pid(i))
	}
	for _, pid := range pids {
		for _, state := range ThreadStates(j.t, pid) {
			if state != 'T' {
				return false
			}
		}
	}
	return true
}

// Signal sends a signal to every CUDA process of the job.
func (j *Job) Signal(sig unix.Signal) {
	j.t.Helper()
	for i := range j.Dirs {
		if err := unix.Kill(j.pid(i), sig); err != nil {
			j.t.Fatal(err)
		}
	}
}

// ThreadStates returns the state letter of every thread of a process.
func ThreadStates(t testing.TB, pid int) map[int]byte {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[int]byte)
	for _, entry := range entries {
		tid, _ := strconv.Atoi(entry.Name())
		states[tid] = processState(tid)
	}
	return states
}

func processState(pid int) byte {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	return strings.TrimSpace(rest)[0]
}

// PIDs lists the processes of the job, the root first, as they were when they last
// reported. criu restores them with the same pids.
func (j *Job) PIDs() []int {
	j.t.Helper()
	pids := []int{j.PID}
	for i := range j.Dirs {
		if pid := j.MustStatus(i).PID; pid != j.PID {
			pids = append(pids, pid)
		}
	}
	return pids
}

// State returns the state letter of the root's main thread in /proc, or "" if it is gone.
func (j *Job) State() string {
	if state := processState(j.PID); state != 0 {
		return string(rune(state))
	}
	return ""
}

// JobOf returns a job without CUDA.
func JobOf(t *testing.T, pid int) *Job { return &Job{t: t, PID: pid} }

// Root returns the pid of the root as an argument for criu -t.
func (j *Job) Root() string { return strconv.Itoa(j.PID) }

// Kill ends the whole job and waits until the pids of its tree are free.
func (j *Job) Kill() {
	j.t.Helper()
	pids, _ := proc.Tree(j.PID) // it may have ended
	_ = unix.Kill(-j.PID, unix.SIGKILL)
	Eventually(j.t, Soon, "the job is gone", func() bool {
		return j.Gone() && !slices.ContainsFunc(pids, func(pid int) bool { return processState(pid) != 0 })
	})
}
