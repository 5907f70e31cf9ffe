package jobs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/testenv"
)

// TestAJobThatEndsNamesTheCheckpointFromWhichItResumes: the newest that is usable, if there is one.
func TestAJobThatEndsNamesTheCheckpointFromWhichItResumes(t *testing.T) {
	dir := t.TempDir()
	view, err := store.Open(filepath.Join(dir, "D"), store.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	c := newCore(nil, Options{Dir: filepath.Join(dir, "D"), Messages: io.Discard})
	c.store, c.record.Name = view, "train"
	said := &strings.Builder{}
	c.messages = said
	s := &supervisor{core: c, exit: sandbox.Exit{Status: unix.WaitStatus(7 << 8), At: time.Now()}}
	ends := func(want string) {
		t.Helper()
		said.Reset()
		if status, err := s.endJob(); status != 7 || err != nil || !strings.Contains(said.String(), "ended with exit status 7"+want) {
			t.Errorf("%d, %v, %q; want %q", status, err, said, want)
		}
		if want == "\n" {
			return
		}
		said.Reset()
		if err := c.sayNext(); err != nil || !strings.Contains(said.String(), strings.TrimPrefix(want, "; ")) {
			t.Errorf("%v, %q; want %q", err, said, want)
		}
	}
	ends("\n")
	image := filepath.Join(dir, "image")
	if err := os.Mkdir(image, 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(image, "some.img"), "some")
	for range 2 {
		if _, err := view.Publish(t.Context(), image, store.Info{CreatedAt: time.Now(), RootPID: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	ends("; the same command resumes from checkpoint 000002 of ")
	if err := view.GiveUp("000002", errors.New("no")); err != nil {
		t.Fatal(err)
	}
	ends("; the same command resumes from checkpoint 000001 of ")
	testenv.WriteFile(t, filepath.Join(dir, "D", "checkpoints", "000001", "checkpoint.json"), "{")
	ends("; none of its checkpoints is known to be usable: see cucriu jobs list train")
}
