package jobs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestCopiesForSocketsAreOfADirectoryThatLasts: the kernel unmounts what is mounted on one that is removed.
func TestCopiesForSocketsAreOfADirectoryThatLasts(t *testing.T) {
	before := time.Now().Add(-time.Hour)
	dir := t.TempDir()
	make := func(mode os.FileMode, names ...string) string {
		t.Helper()
		path := filepath.Join(append([]string{dir}, names...)...)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	everybodys := make(os.ModeSticky|0o777, "tmp")
	inThat, own := make(0o700, "tmp", "own"), make(0o700, "own")
	deep := make(0o700, "tmp", "own", "deep")
	after := time.Now().Add(time.Hour)
	for name, test := range map[string]struct {
		dir   string
		begun time.Time
		want  string
	}{
		"older than the job":                    {deep, after, deep},
		"made by the job":                       {deep, before, everybodys},
		"made by the job, for everybody":        {everybodys, before, everybodys},
		"gone":                                  {filepath.Join(own, "gone", "too"), after, own},
		"gone, and made by the job":             {filepath.Join(deep, "gone"), before, everybodys},
		"the beginning of the job is not known": {own, time.Time{}, own},
		"it is not known, and in one that is":   {inThat, time.Time{}, everybodys},
		"it is not known, and further below":    {deep, time.Time{}, deep},
		"gone in a file system that is mounted": {"/proc/gone/too", before, "/proc"},
		"gone, and nothing above it":            {"/cucriu-gone", before, "/cucriu-gone"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lasting(test.dir, test.begun); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
