package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// program describes how to start a target.
type program struct {
	args []string // of cudawork, without --dir
	mib  int      // device memory on each GPU; 0: cudawork's default; staging: so much that a checkpoint takes a while
	sees string   // the GPUs that it sees: "A", "B" or "AB"; "" is A
	env  []string
	// Sizes of allocations, in eighths of the smallest size that does not come back if
	// another GPU accesses it. An eighth is 64 MiB on the real driver.
	ballast, handle int
	cupti           bool // can load CUPTI
	procs           int  // CUDA processes below it; 0: it is one itself
	own             bool // the test program's own CUDA program (extras_test.go) instead of cudawork
}

// staging stands for an amount of device memory whose checkpoint takes a while.
const staging = -1

// target is a process tree with CUDA in it.
type target struct {
	program
	pid    int
	dir    string
	dirs   []string // of the CUDA processes
	exited chan struct{}
	status syscall.WaitStatus // after exited
}

// spawner starts processes from one OS thread that lives as long as the tests. The parent
// death signal is sent when the thread that started a process ends, and Go may end threads
// at any time.
type spawner chan func()

func newSpawner() spawner {
	s := make(spawner)
	go func() {
		runtime.LockOSThread()
		for start := range s {
			start()
		}
	}()
	return s
}

func (s spawner) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	failed := make(chan error)
	s <- func() { failed <- cmd.Start() }
	return <-failed
}

// startTarget starts a program and waits until each of its CUDA processes computes.
func (b *bench) startTarget(p program) (*target, error) {
	dir, err := os.MkdirTemp(b.dir, "target-")
	if err != nil {
		return nil, err
	}
	t := &target{program: p, dir: dir, dirs: []string{dir}, exited: make(chan struct{})}
	if p.procs > 0 {
		t.dirs = nil
		for i := range p.procs {
			t.dirs = append(t.dirs, filepath.Join(dir, "rank-"+strconv.Itoa(i)))
		}
	}
	command := []string{b.cudawork}
	if p.own {
		command = []string{b.self}
	}
	command = append(append(command, "--dir", dir), p.args...)
	switch {
	case p.mib == staging:
		command = append(command, "--mib", strconv.Itoa(b.stagingMiB))
	case p.mib > 0:
		command = append(command, "--mib", strconv.Itoa(p.mib))
	}
	if p.ballast > 0 {
		command = append(command, "--ballast", strconv.Itoa(p.ballast*b.eighthMiB))
	}
	if p.handle > 0 {
		command = append(command, "--handle-mib", strconv.Itoa(p.handle*b.eighthMiB))
	}
	if p.cupti {
		library, err := b.cupti()
		if err != nil {
			return nil, err
		}
		p.env = append(slices.Clone(p.env), "LD_LIBRARY_PATH="+library+":"+os.Getenv("LD_LIBRARY_PATH"))
	}
	cmd := b.host.Command(b.self, append([]string{filepath.Join(b.root, "dev"), minorsText(b.gpusOf(p.sees))}, command...)...)
	cmd.Env = append(append(cmd.Env, "CUDA_DEVICE_ORDER=PCI_BUS_ID", roleVariable+"="+roleTarget), p.env...)
	cmd.Dir = "/"
	log, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	if err := b.spawner.start(cmd); err != nil {
		return nil, err
	}
	t.pid = cmd.Process.Pid
	held, err := proc.Open(t.pid)
	if err != nil {
		return nil, err
	}
	go func() {
		defer held.Close()
		// Do not wait for the child yet: that would take the stops of a traced target away
		// from its tracer, which is this process, too.
		_ = held.WaitExit(context.Background())
		_ = cmd.Wait()
		t.status = cmd.ProcessState.Sys().(syscall.WaitStatus)
		close(t.exited)
	}()
	b.targets = append(b.targets, t)
	if err := t.waitTicks(1, startTime); err != nil || !slices.Contains(p.args, "--spin") {
		return t, err
	}
	// A thread that has not reached its loop yet would be held by the lock, and survive.
	return t, t.wait(patience, "a thread of it spins", t.spins)
}

// spins reports whether a thread beside the main one has computed for a while, or has waited often: the simulated driver
// lets a thread sleep now and then that does nothing but synchronize.
func (t *target) spins() bool {
	const enough, often = 5, 500 // clock ticks of 10 ms, waits
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", t.pid))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 13 || filepath.Base(filepath.Dir(file)) == strconv.Itoa(t.pid) {
			continue
		}
		user, _ := strconv.Atoi(fields[11]) // fields 14 and 15 of the line
		system, _ := strconv.Atoi(fields[12])
		waits := 0
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
		if _, text, found := strings.Cut(string(status), "\nvoluntary_ctxt_switches:"); found {
			_, _ = fmt.Sscan(text, &waits)
		}
		if user+system >= enough || waits >= often {
			return true
		}
	}
	return false
}

// stderr returns the last output of the target, for messages.
func (t *target) stderr() string {
	data, _ := os.ReadFile(filepath.Join(t.dir, "stderr"))
	text := strings.TrimSpace(string(data))
	return text[max(0, len(text)-300):]
}

// end describes how the target ended. It is "" while the target lives.
func (t *target) end() string {
	select {
	case <-t.exited:
	default:
		return ""
	}
	if t.status.Signaled() {
		return "killed by " + unix.SignalName(t.status.Signal())
	}
	return fmt.Sprintf("exit %d (%s)", t.status.ExitStatus(), t.stderr())
}

// waitEnd waits until the target has ended.
func (t *target) waitEnd(within time.Duration) bool {
	select {
	case <-t.exited:
		return true
	case <-time.After(within):
		return false
	}
}

func (t *target) read(process int) (status testenv.Status, err error) {
	data, err := os.ReadFile(filepath.Join(t.dirs[process], "status"))
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	return status, err
}

// process returns the pid of one of the target's CUDA processes.
func (t *target) process(i int) (int, error) {
	if t.procs == 0 {
		return t.pid, nil
	}
	status, err := t.read(i)
	return status.PID, err
}

// ticks returns the counter of a CUDA process, or -1 before its first status.
func (t *target) ticks(process int) int {
	status, err := t.read(process)
	if err != nil {
		return -1
	}
	return status.Tick
}

// waitTicks waits until every CUDA process has ticked n times more.
func (t *target) waitTicks(n int, within time.Duration) error {
	for i := range t.dirs {
		from := max(0, t.ticks(i))
		if err := t.wait(within, fmt.Sprintf("process %d ticks on from %d", i, from), func() bool { return t.ticks(i) >= from+n }); err != nil {
			return err
		}
	}
	return nil
}

// whole makes every CUDA process compare all its GPU memory with the expected content.
func (t *target) whole(within time.Duration) error {
	if err := t.waitTicks(2, within); err != nil {
		return err
	}
	for i, dir := range t.dirs {
		request, answer := filepath.Join(dir, "check"), filepath.Join(dir, "checked")
		_ = os.Remove(answer)
		if err := os.WriteFile(request, nil, 0o600); err != nil {
			return err
		}
		err := t.wait(within, "it checks its memory", func() bool {
			_, err := os.Stat(request)
			return errors.Is(err, os.ErrNotExist)
		})
		if err != nil {
			return err
		}
		var checked struct{ Tick, Bad, Words int }
		data, err := os.ReadFile(answer)
		if err == nil {
			err = json.Unmarshal(data, &checked)
		}
		if err != nil {
			return err
		}
		if checked.Bad != 0 || checked.Words == 0 {
			return fmt.Errorf("%d of %d words wrong", checked.Bad, checked.Words)
		}
		if status, err := t.read(i); err != nil || status.Bad != 0 {
			return fmt.Errorf("%d samples wrong %v", status.Bad, err)
		}
	}
	return nil
}

// wait polls, because a target reports its progress in files.
func (t *target) wait(within time.Duration, what string, done func() bool) error {
	deadline := time.Now().Add(within)
	for !done() {
		if end := t.end(); end != "" {
			return fmt.Errorf("target %s before %s", end, what)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not in %v: %s", within, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// gpuNames returns the GPUs on which the target says it is, as letters.
func (b *bench) gpuNames(t *target) (string, error) {
	status, err := t.read(0)
	if err != nil {
		return "", err
	}
	names := ""
	for _, gpu := range status.GPUs {
		uuid, err := cudackpt.ParseUUID(gpu.UUID)
		if err != nil {
			return "", err
		}
		names += b.letter(func(g cudackpt.GPU) bool { return g.UUID == uuid })
	}
	return names, nil
}

// busNames returns the GPUs whose bus ids the target's driver reports, as letters.
func (b *bench) busNames(t *target) (string, error) {
	status, err := t.read(0)
	if err != nil {
		return "", err
	}
	names := ""
	for _, gpu := range status.GPUs {
		names += b.letter(func(g cudackpt.GPU) bool { return strings.EqualFold(g.PCIBusID, gpu.PCI) })
	}
	return names, nil
}

func (b *bench) letter(is func(cudackpt.GPU) bool) string {
	for i, gpu := range b.gpus {
		if is(gpu) {
			return string(rune('A' + i))
		}
	}
	return "?"
}

// gpusOf turns letters into GPUs.
func (b *bench) gpusOf(letters string) []cudackpt.GPU {
	if letters == "" {
		letters = "A"
	}
	var gpus []cudackpt.GPU
	for _, letter := range letters {
		gpus = append(gpus, b.gpus[letter-'A'])
	}
	return gpus
}

// kill ends the whole tree and waits until the root is gone.
func (t *target) kill() error {
	_ = unix.Kill(-t.pid, unix.SIGKILL)
	if !t.waitEnd(patience) {
		return fmt.Errorf("target %d does not die", t.pid)
	}
	return nil
}
