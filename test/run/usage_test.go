package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestADirectoryOfSomethingElseIsWrongUsage: a unit does not try it again, and nobody is advised to close a
// directory of the system to others.
func TestADirectoryOfSomethingElseIsWrongUsage(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		if err := os.Mkdir(w.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, filepath.Join(w.dir, "passwd"), "root:x:0:0::/root:/bin/sh\n")
		r := w.run()
		r.ends(2, "is not empty and not the directory of a job", "name a new directory")
		if text := r.said(); strings.Contains(text, "chmod") {
			t.Error(text)
		}
		w.nothingLeft()
	})
}
