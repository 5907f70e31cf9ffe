package stages

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/config"
	"cucriu/internal/core/session"
)

// caller is a criu that calls the hook. This program plays it.
type caller struct {
	t     *testing.T
	hook  *session.Env
	criu  *criuutil.Criu
	fd    int // of the image directory
	calls int
}

func newCaller(t *testing.T) *caller {
	t.Helper()
	criu, err := criuutil.OpenCriu(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { criu.Close() })
	c := &caller{t: t, criu: criu, hook: session.Of(&config.Hook{Config: config.Config{RunDir: filepath.Join(t.TempDir(), "run")}, Log: slog.New(slog.DiscardHandler)})}
	c.fd, err = unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(c.fd) })
	return c
}

// request opens the image directory anew, as criu does for each request.
func (c *caller) request() {
	c.t.Helper()
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.fd), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Dup3(again, c.fd, unix.O_CLOEXEC), unix.Close(again))
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) call(action string, result error) error {
	stage := Stage{Action: action, ImageDir: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.fd), InitPID: "4711"}
	return once(c.hook, c.criu, stage, func() error {
		c.calls++
		return result
	})
}

func TestASecondCallOfAStageByTheSameCriuDoesNothing(t *testing.T) {
	for _, action := range []string{"pre-dump", "post-dump", "network-unlock", "pre-restore", "pre-resume", "post-resume"} {
		t.Run(action, func(t *testing.T) {
			c := newCaller(t)
			if err := errors.Join(c.call(action, nil), c.call(action, errors.New("called twice"))); err != nil || c.calls != 1 {
				t.Fatalf("%d calls: %v", c.calls, err)
			}
		})
	}
}

func TestASecondCallOfAStageRepeatsTheErrorOfTheFirst(t *testing.T) {
	c := newCaller(t)
	for range 2 {
		if err := c.call("pre-dump", errors.New("in use")); err == nil || err.Error() != "in use" {
			t.Fatalf("call: %v", err)
		}
	}
	if c.calls != 1 {
		t.Fatalf("%d calls", c.calls)
	}
}

func TestTheNextRequestOfTheSameCriuIsNoSecondCall(t *testing.T) {
	for _, first := range []error{nil, errors.New("in use")} {
		c := newCaller(t)
		_ = c.call("pre-dump", first)
		c.request()
		if err := c.call("pre-dump", nil); err != nil || c.calls != 2 {
			t.Fatalf("after %v: %d calls: %v", first, c.calls, err)
		}
	}
}

func TestTheNextStageIsNoSecondCall(t *testing.T) {
	c := newCaller(t)
	if err := errors.Join(c.call("pre-dump", nil), c.call("post-dump", nil)); err != nil || c.calls != 2 {
		t.Fatalf("%d calls: %v", c.calls, err)
	}
}

func TestAStageWhoseFirstCallWasCutOffIsNotBegunAgain(t *testing.T) {
	c := newCaller(t)
	func() {
		defer func() { _ = recover() }()
		_ = once(c.hook, c.criu, Stage{Action: "pre-dump", ImageDir: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), c.fd), InitPID: "4711"},
			func() error { panic("killed") })
	}()
	if err := c.call("pre-dump", nil); err == nil || c.calls != 0 {
		t.Fatalf("%d calls: %v", c.calls, err)
	}
}
