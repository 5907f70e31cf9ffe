package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// program is a row of the table. What it prints proves it right: lines that begin with
// "step" and hold what it has computed, and at its end one that begins with "done". If it
// lacks a library it says so and exits with status [missing].
type program struct {
	name    string
	command []string // python3 and torchrun are looked up; NAME.py is one of test/workload/programs
	env     []string
	gpus    int // that it needs
	want    outcome
	finding string // for which it must be refused
	// client is a program beside the job, which is not dumped. It gets the port that the job
	// says it listens on as its last argument.
	client []string
	// compares says that the program compares its results with each other, because they
	// differ from run to run; else they are compared with those of an undisturbed run.
	compares bool
	// alone says that it works only if no other program is on its GPUs: its kernels wait for those on another GPU, and a
	// GPU ends one that waits for seconds while another program wants its turn, once it has been restored (Xid 109; see
	// gpu-in-use in docs/limits.md).
	alone bool
	// greedy programs take most of a GPU's memory: one at a time.
	greedy bool
	// underRun starts the program under cucriu run.
	underRun bool
	// guest loads the library of cucriu run --dir into the program.
	guest bool
	// image has it started from an image, too: see TestProgramsFromAnImage.
	image bool
}

func (p program) hasGuest() bool {
	return p.guest || os.Getenv("CUCRIU_PROGRAMS_GUEST") != ""
}

// missing is the exit status of a program that lacks a library.
const missing = 77

// run is a program at work, with its client.
type run struct {
	t    *testing.T
	dir  string
	root int
	logs []string // of the job, and of its client
	exit chan int // its exit status, until it is dumped
}

// start starts a program as a shell does that runs it in the background: in a session of its
// own, with its output in a file.
func start(t *testing.T, host *testenv.Host, p program) *run {
	t.Helper()
	r := &run{t: t, dir: newDir(t), exit: make(chan int, 1)}
	t.Cleanup(r.kill)
	command, pidfile := p.command, filepath.Join(r.dir, "pid")
	if p.underRun {
		command = append([]string{filepath.Join(filepath.Dir(host.HookBin), "cucriu"), "run", "--no-checkpoints", "--pidfile", pidfile, "--"}, command...)
	}
	env := append(slices.Clone(p.env), "NCCL_RAS_ENABLE=0") // as long jobs have it: programs that run at once want one port
	if p.hasGuest() {
		env = append(env, "LD_PRELOAD="+testenv.Guest(t))
	}
	cmd, err := r.spawn(host, command, env)
	if err != nil {
		t.Fatal(err)
	}
	r.root = cmd.Process.Pid
	if p.underRun && !wait(toCommand, func() bool {
		r.root = testenv.ReadPID(pidfile)
		return r.root != 0
	}) {
		t.Fatalf("cucriu run has started nothing:\n%s", r.tail())
	}
	exit := r.exit
	go func() {
		_ = cmd.Wait()
		exit <- cmd.ProcessState.ExitCode()
	}()
	return r
}

// exitStatus is the exit status of a program that was not dumped, once it has ended.
func (r *run) exitStatus() (status int, ended bool) {
	select {
	case status = <-r.exit:
		r.exit <- status // for the next one who asks
		return status, true
	default:
		return 0, false
	}
}

// listening is what a program prints that has clients.
var listening = regexp.MustCompile(`(?m)^listening (\d+)$`)

// connect starts the program's client as soon as the program listens. It does nothing if the
// program has none, or ends first.
func (r *run) connect(host *testenv.Host, p program) error {
	if p.client == nil {
		return nil
	}
	var port []string
	if !wait(toMidRun, func() bool {
		port = listening.FindStringSubmatch(r.output())
		return port != nil || !r.alive()
	}) {
		return fmt.Errorf("it does not listen after %v", toMidRun)
	}
	if port == nil {
		return nil
	}
	// Its working directory is elsewhere: it is no process of the job.
	client := &run{t: r.t, dir: newDir(r.t)}
	r.t.Cleanup(client.kill)
	cmd, err := client.spawn(host, append(slices.Clone(p.client), port[1]), p.env)
	if err != nil {
		return err
	}
	r.logs = append(r.logs, client.logs...)
	go func() { _ = cmd.Wait() }()
	return nil
}

// newDir makes a folder, whose path is as the kernel tells it.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (r *run) spawn(host *testenv.Host, command, env []string) (*exec.Cmd, error) {
	command = resolve(r.t, command)
	path := filepath.Join(r.dir, "log")
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(slices.Concat(host.Env, noMulticast()), env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.logs = append(r.logs, path)
	return cmd, cmd.Start()
}

// noMulticast switches NVLink multicast off: its objects belong to no single process, and a
// program that dies with one can leave GPUs that others share out of service.
func noMulticast() []string {
	return []string{"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1"}
}

// resolve puts paths in place of names.
func resolve(t *testing.T, command []string) []string {
	t.Helper()
	var resolved []string
	for _, word := range command {
		switch {
		case strings.HasSuffix(word, ".py"):
			word = testenv.Artefact(t, "make gpu-bundle", "test", "workload", "programs", word)
		case word == "torchrun":
			if path, err := exec.LookPath(word); err == nil {
				word = path
				break
			}
			resolved = append(resolved, resolve(t, []string{"python3", "-m"})...) // what torchrun is
			word = "torch.distributed.run"
		case word == "python3":
			path, err := exec.LookPath(word)
			if err != nil {
				t.Fatal(err)
			}
			word = path
		}
		resolved = append(resolved, word)
	}
	return resolved
}

// output is all that the program and its client have printed.
func (r *run) output() string {
	var all strings.Builder
	for _, log := range r.logs {
		data, _ := os.ReadFile(log)
		all.Write(data)
	}
	return all.String()
}

// steps is how many steps the program has printed.
func (r *run) steps() int {
	return strings.Count("\n"+r.output(), "\nstep ")
}

// results are the lines that prove the program right, in an order that does not depend on
// which of its processes came first.
func (r *run) results() []string { return results(r.output()) }

func results(output string) []string {
	var lines []string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "step ") || strings.HasPrefix(line, "done") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// done reports whether the program, and its client, say that they have come to their end.
func (r *run) done() bool {
	return strings.Count("\n"+r.output(), "\ndone") == len(r.logs)
}

// processes lists the processes of the job: those whose working directory is its own.
func (r *run) processes() []int { return workingIn(r.dir) }

func workingIn(dir string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	var pids []int
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && cwd == dir {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

func (r *run) alive() bool { return testenv.JobOf(r.t, r.root).Alive() }

// kill ends what is left of the job, and waits until it can write into its folder no more.
func (r *run) kill() {
	wait(toLeave, func() bool {
		left := r.processes()
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

// tail is the end of what the program has printed, for people.
func (r *run) tail() string {
	var all strings.Builder
	for _, log := range r.logs {
		data, _ := os.ReadFile(log)
		lines := strings.SplitAfter(string(data), "\n")
		fmt.Fprintf(&all, "%s:\n%s", log, strings.Join(lines[max(0, len(lines)-50):], ""))
	}
	return all.String()
}

// pollEvery is how often the harness looks at a program.
const pollEvery = 20 * time.Millisecond

// wait waits until a condition holds; false if that takes too long.
func wait(within time.Duration, condition func() bool) bool {
	for deadline := time.Now().Add(within); !condition(); time.Sleep(pollEvery) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
