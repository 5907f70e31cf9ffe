package jobs

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cucriu/internal/testenv"
)

// TestWhatLeadsIntoTheOutputIsNotShown: it would be shown again, and fill the disk.
func TestWhatLeadsIntoTheOutputIsNotShown(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, OutputLog)
	open := func(path string) *os.File {
		t.Helper()
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	linked := filepath.Join(dir, "link")
	output := open(path)
	if err := os.Link(path, linked); err != nil {
		t.Fatal(err)
	}
	into := func(command ...string) io.Writer {
		t.Helper()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdin = r
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		t.Cleanup(func() {
			w.Close()
			_ = cmd.Wait()
		})
		return w
	}
	for name, c := range map[string]struct {
		stream io.Writer
		want   bool
	}{
		"the file":          {output, true},
		"a link to it":      {open(linked), true},
		"another file":      {open(filepath.Join(dir, "other")), false},
		"no file":           {io.Discard, false},
		"a pipe to tee":     {into("tee", "-a", path), true},
		"a pipe to another": {into("cat"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want { // which tee opens when it has begun
				testenv.Eventually(t, testenv.Soon, "the output is found", func() bool { return leadsInto(c.stream, path) })
			} else if leadsInto(c.stream, path) {
				t.Error("it does not lead there")
			}
		})
	}
}
