package jobs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cucriu/hooks"
)

// TestNothingThatComesLeadsElsewhere: the other host may be hostile.
func TestNothingThatComesLeadsElsewhere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	j := NewArriving(new(hooks.Hook), dir, "")
	if err := os.MkdirAll(j.Folder(), 0o700); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(j.Folder(), "f0")
	for _, name := range []string{
		".packed/cucriu-files.json", ".packed/cucriu-tree-0", ".packed", ".packed/", ".packed/..", ".packed/../x",
		".packed/a/b", ".packed//x", ".packed/.", "/.packed/x", "../x", "private", "private/0", "",
	} {
		isTaken := strings.HasPrefix(name, ".packed/cucriu-")
		if err := os.WriteFile(from, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err := j.Take(name, from, time.Time{})
		there, _ := filepath.Glob(filepath.Join(j.Folder(), packedDir, "*"))
		if (err == nil) != isTaken || (len(there) > 0) != isTaken {
			t.Errorf("%q: %v, %v", name, err, there)
		}
		if err := os.RemoveAll(filepath.Join(j.Folder(), packedDir)); err != nil {
			t.Fatal(err)
		}
	}
}
