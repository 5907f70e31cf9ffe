package files

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// childVariable makes the test binary a process of a job, or one that puts files back.
const childVariable = "CUCRIU_TEST_FILES_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "job":
		os.Exit(report(runJob()))
	case "putback", "undo":
		os.Exit(report(runPutBack()))
	}
	testenv.Main(m)
}

func report(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// order is what a process of a job is to do, in this order.
type order struct {
	Path  name // is opened
	Flags int
	Map   int  // if not 0, a page is mapped with this protection
	Share bool // the mapping is shared
	Close bool // the descriptor is closed again
	Child bool // a child of the process does it
	Then  string
}

// What an order does then.
const (
	thenUnlink = "unlink"
	thenLease  = "lease"
	thenGuard  = "guard"
)

func runJob() error {
	var orders []order
	if err := json.Unmarshal([]byte(os.Getenv("ORDERS")), &orders); err != nil {
		return err
	}
	var forChild []order
	for _, o := range orders {
		if o.Child {
			o.Child = false
			forChild = append(forChild, o)
			continue
		}
		if err := o.do(); err != nil {
			return fmt.Errorf("%+v: %w", o, err)
		}
	}
	if len(forChild) > 0 {
		if _, err := startOrders(forChild); err != nil {
			return err
		}
	}
	if ready := os.Getenv("READY"); ready != "" {
		if err := os.WriteFile(ready+".new", nil, 0o600); err != nil {
			return err
		}
		if err := os.Rename(ready+".new", ready); err != nil { // it is closed by now, and in no image
			return err
		}
		return unix.Pause()
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	return nil
}

func (o order) do() error {
	fd, err := unix.Open(string(o.Path), o.Flags|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return err
	}
	if o.Map != 0 {
		kind := unix.MAP_PRIVATE
		if o.Share {
			kind = unix.MAP_SHARED
		}
		if _, err := unix.Mmap(fd, 0, os.Getpagesize(), o.Map, kind); err != nil {
			return err
		}
	}
	if o.Close {
		_ = unix.Close(fd)
	}
	switch o.Then {
	case thenUnlink:
		return os.Remove(string(o.Path))
	case thenLease:
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	case thenGuard:
		_, err = guard(string(o.Path))
	}
	return err
}

// orderEnv is the environment of a process that does its orders.
func orderEnv(orders []order) ([]string, error) {
	text, err := json.Marshal(orders)
	return append(os.Environ(), childVariable+"=job", "ORDERS="+string(text)), err
}

// startOrders starts a process that has done its orders when this returns. It ends when the
// caller does.
func startOrders(orders []order) (*exec.Cmd, error) {
	env, err := orderEnv(orders)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = env, os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("the process is not ready: %q, %w", line, err)
	}
	return cmd, nil
}

// startJob starts a job, and returns the pid of its root.
func startJob(t *testing.T, orders ...order) int {
	t.Helper()
	cmd, err := startOrders(orders)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// runPutBack puts files back, or undoes that, and kills itself at a step.
func runPutBack() error {
	last, err := strconv.Atoi(os.Getenv("KILL_AT"))
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, os.Getenv("TIME"))
	if err != nil {
		return err
	}
	o := PutBackOptions{Time: at, Undo: UndoFile{Path: os.Getenv("UNDO"), Spare: os.Getenv(spareVariable)}}
	if record := os.Getenv("RECORD"); record != "" {
		o.OnlyMissing, o.Making = true, recorder(record)
	}
	steps := 0
	step := func(string) error {
		if steps == last {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		steps++
		return nil
	}
	if os.Getenv(childVariable) == "undo" {
		_, err := undoInSteps(o.Undo, step)
		return err
	}
	changes, err := putBackInSteps(bg(), os.Getenv("DIR"), o, step)
	for _, change := range changes {
		fmt.Println(change)
	}
	return err
}
