package testenv

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/imagedir"
)

// The exit statuses of the cucriu command.
const (
	StatusFailed  = 1
	StatusUsage   = 2
	StatusRefused = 3
	StatusNotBack = 4
	StatusEnded   = 5 // the job ended while it failed
)

// Exits runs the cucriu command to its end, and fails the test unless it exits with the status.
func Exits(t testing.TB, host *Host, status int, args ...string) string {
	t.Helper()
	cmd := host.CucriuCommand(args...)
	watchdog := time.AfterFunc(3*Soon, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	out, err := cmd.CombinedOutput()
	if code := ExitStatus(err); code != status {
		t.Fatalf("cucriu %s: exit status %d (%v), want %d\n%s", args[0], code, err, status, out)
	}
	return string(out)
}

// Failing runs a cucriu that goes wrong at a failpoint.
func Failing(t testing.TB, host *Host, point string, args ...string) (string, error) {
	t.Helper()
	cmd := host.Command(Artefact(t, "make build", "build", "test", "cucriu"), args...)
	cmd.Env = append(cmd.Env, "CUCRIU_FAILPOINT="+point)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// FailingExits is [Exits] for a cucriu that goes wrong at a failpoint, and prints the text.
func FailingExits(t testing.TB, host *Host, status int, says, point string, args ...string) {
	t.Helper()
	out, err := Failing(t, host, point, args...)
	if ExitStatus(err) != status || !strings.Contains(out, says) {
		t.Errorf("cucriu %s: %v, want exit status %d and %q\n%s", args[0], err, status, says, out)
	}
}

// Output is what a command prints. It can be read while the command runs.
type Output struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (o *Output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.Write(p)
}

// String returns what was printed until now.
func (o *Output) String() string {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.text.String()
}

// ExitStatus returns the exit status of a command; 0 if it succeeded, -1 if a signal ended it or it
// could not be started.
func ExitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// NewImages returns the path of an image directory that does not exist yet.
func NewImages(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "images")
}

// WholeImage fails the test unless there is a complete image and nothing else.
func WholeImage(t testing.TB, images string) {
	t.Helper()
	for _, name := range []string{"inventory.img", "pstree.img", imagedir.ManifestName, "dump.log", "stats-dump"} {
		if !Exists(filepath.Join(images, name)) {
			t.Errorf("the image is without %s", name)
		}
	}
	NoPartialImage(t, images)
}

// NoPartialImage fails the test if a partial image is left.
func NoPartialImage(t testing.TB, images string) {
	t.Helper()
	left, err := filepath.Glob(images + "?*")
	if err != nil || len(left) > 0 {
		t.Errorf("left beside the image: %v %v", left, err)
	}
}

// NotDumped fails the test unless the job runs on and there is no image.
func NotDumped(t testing.TB, job *Job, images string) {
	t.Helper()
	job.Runs()
	if _, err := os.Stat(images); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dump failed, but there is an image directory: %v", err)
	}
	NoPartialImage(t, images)
}

// NoWatcher fails the test if a watcher of the host is left.
func NoWatcher(t testing.TB, host *Host) {
	t.Helper()
	Eventually(t, Soon, "no watcher is left", func() bool { return len(host.Watchers()) == 0 })
}

// DumpAndLeave dumps a job with cucriu, which leaves it alive (-R or -S). The image can be restored
// although the job has gone on.
func DumpAndLeave(t testing.TB, host *Host, job *Job, how string) string {
	t.Helper()
	for {
		images := NewImages(t)
		Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, how)
		if !CaughtWriting(t, images) {
			return images
		}
		job.Signal(unix.SIGCONT)
		job.WaitTicks(1)
	}
}
