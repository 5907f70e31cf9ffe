package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// A mistake is a command line as somebody types it who does not know better.
type mistake struct {
	name   string
	args   []string
	status int
	says   string // in the one error, or with status 0 in the output
}

// bench is a host with a job on which mistakes are made. Nothing of it may change.
type bench struct {
	*testenv.Host
	job *testenv.Job
	dir string // in which commands are run
	// started is the pid of the command that was started last.
	started string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	host := testenv.NewHost(t, 2)
	b := &bench{Host: host, job: host.Start(1, "--gpus", "0"), dir: filepath.Join(t.TempDir(), "work")}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

// make runs every mistake, and fails the test unless each ends with its status and one error,
// and has changed nothing.
func (b *bench) make(t *testing.T, mistakes ...mistake) {
	t.Helper()
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			before, sessions := b.files(t), len(b.Sessions())
			stdout, stderr, status := b.run(t, m.args...)
			if status != m.status {
				t.Errorf("exit status %d, want %d\n%s%s", status, m.status, stdout, stderr)
			}
			if m.status == 0 {
				if !strings.Contains(stdout+stderr, m.says) {
					t.Errorf("it does not say %q:\n%s%s", m.says, stdout, stderr)
				}
			} else {
				oneError(t, stderr, m.says)
			}
			if after := b.files(t); after != before {
				t.Errorf("files before:\n%s\nafter:\n%s", before, after)
			}
			if n := len(b.Sessions()); n != sessions {
				t.Errorf("%d sessions have been begun", n-sessions)
			}
		})
	}
	b.job.Runs()
}

// run runs cucriu in the directory of the bench.
func (b *bench) run(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := b.CucriuCommand(args...)
	cmd.Dir = b.dir
	return result(t, cmd)
}

// start starts cucriu. Its whole output can be read when it has ended.
func (b *bench) start(t *testing.T, args ...string) (*exec.Cmd, *testenv.Output) {
	t.Helper()
	cmd := b.CucriuCommand(args...)
	output := new(testenv.Output)
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("$ cucriu %s\n%s", strings.Join(args, " "), output)
		}
	})
	b.started = strconv.Itoa(cmd.Process.Pid)
	return cmd, output
}

func result(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// oneError fails the test unless the output of a command is one error that says something,
// in its first line or in those that are indented below. Findings that check has printed are
// its output, and not part of it.
func oneError(t *testing.T, stderr, says string) {
	t.Helper()
	errs, inError := 0, false
	for line := range strings.Lines(stderr) {
		switch {
		case strings.HasPrefix(line, "cucriu: error: "):
			errs, inError = errs+1, true
		case !inError && strings.HasPrefix(line, "cucriu: "): // progress
		case strings.HasPrefix(line, "  ") && inError:
		case strings.Contains(line, " level=warning ") && !strings.Contains(line, says): // about something else
		default:
			t.Errorf("more than the error: %s", line)
		}
	}
	if errs != 1 || !strings.Contains(stderr, says) {
		t.Errorf("want one error with %q:\n%s", says, stderr)
	}
}

// files lists everything below the directory of the bench, links as they are.
func (b *bench) files(t *testing.T) string {
	t.Helper()
	var list strings.Builder
	err := filepath.WalkDir(b.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s %v", path, info.Mode())
		if !info.IsDir() { // the partial directory of a dump changes the times of the one above
			fmt.Fprintf(&list, " %d %v", info.Size(), info.ModTime())
		}
		fmt.Fprintln(&list)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.String()
}

// path makes the name of a file in the directory of the bench.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// write writes a file in the directory of the bench, and the directories above it.
func (b *bench) write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, b.path(name), text)
	return b.path(name)
}
