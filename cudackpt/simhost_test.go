package cudackpt_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cucriu/cudackpt"
)

// The tests that need a driver run against the simulated one: a real shared library, loaded by
// real processes. The library takes its host from the environment in which a program starts. So
// the test program runs itself again inside a simulated host with two GPUs.

const (
	insideVariable = "CUDACKPT_TEST_INSIDE" // set in the environment of the test program inside
	simGPUs        = 2
	patience       = time.Minute // limit for what takes milliseconds on an idle machine
)

func artefact(elem ...string) string {
	path, err := filepath.Abs(filepath.Join(append([]string{"..", "build"}, elem...)...))
	if err != nil {
		panic(err)
	}
	return path
}

func TestMain(m *testing.M) {
	run := artefact("cudasim", "cudasim-run")
	if _, err := os.Stat(run); err != nil || os.Getenv(insideVariable) != "" {
		os.Exit(m.Run()) // without the build's artefacts, the tests that need them fail
	}
	status, err := runInside(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// runInside runs this test program in a simulated host of its own.
func runInside(run string) (status int, err error) {
	dir, err := os.MkdirTemp("", "cudackpt-test-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	arguments := []string{"--gpus", strconv.Itoa(simGPUs), "--root", filepath.Join(dir, "host"), "--", "/proc/self/exe"}
	if self, err := os.Executable(); err == nil {
		arguments[len(arguments)-1] = self
	}
	cmd := exec.Command(run, append(arguments, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// needSim fails the test unless it runs inside a simulated host.
func needSim(t *testing.T) {
	t.Helper()
	for _, path := range []string{artefact("cudasim", "cudasim-run"), artefact("cudasim", "libcuda.so.1"), artefact("workload", "cudawork")} {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v: this test drives real processes on the simulated driver: run \"make sim workload\" at the top of the repository first", err)
		}
	}
	if os.Getenv("CUDASIM_ROOT") == "" {
		t.Fatal("CUDASIM_ROOT is not set: cudasim-run did not make a simulated host")
	}
}

func simRoot() string { return os.Getenv("CUDASIM_ROOT") }

// openSim opens the simulated driver as a program would open the real one.
func openSim(t *testing.T) *cudackpt.Driver {
	t.Helper()
	needSim(t)
	d, err := cudackpt.Open(cudackpt.WithLibrary(os.Getenv("CUCRIU_LIBCUDA")), cudackpt.WithRoot(os.Getenv("CUCRIU_DRIVER_ROOT")))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// faults writes the fault rules of the simulated host, and returns a function that ends them.
func faults(t *testing.T, rules ...string) (end func()) {
	t.Helper()
	path := filepath.Join(simRoot(), "faults")
	if err := os.WriteFile(path, []byte(strings.Join(rules, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	end = func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	return end
}

// work is one running cudawork.
type work struct {
	cudackpt.Process
	t      *testing.T
	dir    string
	exited chan struct{}
}

// startWork starts cudawork and waits until it computes.
func startWork(t *testing.T, d *cudackpt.Driver, arguments ...string) work {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(artefact("workload", "cudawork"), append([]string{"--dir", dir, "--mib", "1", "--copy-wait"}, arguments...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := work{Process: d.Process(cmd.Process.Pid), t: t, dir: dir, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(w.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-w.exited
	})
	w.waitTicks(2)
	return w
}

// startPlain starts a process without CUDA and returns its pid.
func startPlain(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

type workStatus struct {
	Tick int64 `json:"tick"`
	Bad  int64 `json:"bad"`
	GPUs []struct {
		UUID cudackpt.UUID `json:"uuid"`
	} `json:"gpus"`
}

func (w work) read(name string) (s workStatus, ok bool) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		w.t.Fatalf("cudawork's %s: %v", name, err)
	}
	return s, true
}

// waitTicks waits until cudawork has made n more ticks.
func (w work) waitTicks(n int64) workStatus {
	w.t.Helper()
	var first, last workStatus
	var have bool
	w.waitUntil("makes ticks", func() bool {
		s, ok := w.read("status")
		if ok && !have {
			first, have = s, true
		}
		last = s
		return have && s.Tick >= first.Tick+n
	})
	return last
}

// checkContent has cudawork compare all of its GPU memory with what must be there.
func (w work) checkContent() {
	w.t.Helper()
	os.Remove(filepath.Join(w.dir, "checked"))
	if err := os.WriteFile(filepath.Join(w.dir, "check"), nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
	var s workStatus
	w.waitUntil("checks its content", func() (ok bool) { s, ok = w.read("checked"); return ok })
	if s.Bad != 0 {
		w.t.Errorf("%d words of GPU memory are wrong", s.Bad)
	}
}

// waitUntil polls, because cudawork reports what it does in files.
func (w work) waitUntil(what string, done func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	for !done() {
		select {
		case <-w.exited:
			w.t.Fatalf("cudawork (pid %d) ended before it %s", w.PID(), what)
		case <-deadline:
			w.t.Fatalf("cudawork (pid %d) has not got so far in %v that it %s", w.PID(), patience, what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// waitInTheWay waits until another call to the process is in the way of the next.
func (w work) waitInTheWay(call string) {
	w.t.Helper()
	w.waitUntil("was in "+call, func() bool {
		_, err := w.State(within(w.t, 50*time.Millisecond))
		waited, ok := errors.AsType[*cudackpt.InterruptedError](err)
		return ok && !waited.Started && waited.InTheWay == call
	})
}

func (w work) wantState(want cudackpt.State) {
	w.t.Helper()
	if got, err := w.State(within(w.t, patience)); err != nil || got != want {
		w.t.Fatalf("state is %v, %v, want %v", got, err, want)
	}
}

func within(t *testing.T, timeout time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}
