package migrate

import (
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestALogOfAnotherHostIsNotContinued: a job that appends to a log would leave one half of it here
// and the other there. It moves only if the user says so, and then the warnings of the other host are said.
func TestALogOfAnotherHostIsNotContinued(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		c := newCopied(t)
		log := filepath.Join(c.work.Dir, "log")
		c.B.Run("sh", "-c", "echo another >"+log)
		out, err := c.migrate("")
		if err == nil || !strings.Contains(out, log+" is a different file here, to which the job would append") || !strings.Contains(out, "--copy-files=changed") {
			t.Fatalf("the job was to be refused: %v: %s", err, out)
		}
		c.staysHere("a refused migration")
		if out, err = c.migrate("", "--force", "file-differs"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if want := "at b: file-differs"; !strings.Contains(out, want) || !strings.Contains(out, "(overridden)") {
			t.Errorf("%q is not said of what was forced: %s", want, out)
		}
	})
}
