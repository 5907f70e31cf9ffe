package dump

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestTheOwnerOfTheParentCannotLeadADumpElsewhere: who owns the directory above may put a symbolic link in place of
// the one that was made, and root would write where it leads.
func TestTheOwnerOfTheParentCannotLeadADumpElsewhere(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		parent, victim := filepath.Join(t.TempDir(), "parent"), t.TempDir()
		if err := errors.Join(os.Mkdir(parent, 0o755), os.Chown(parent, 1000, 1000)); err != nil {
			t.Fatal(err)
		}
		images := filepath.Join(parent, "images")
		swapping := testenv.Script(t, fmt.Sprintf(`if [ "$1" = swrk ]; then
	for made in %[1]s.partial-*; do mv "$made" %[2]s/moved && ln -s %[3]s "$made"; done
fi
exec %[4]s "$@"
`, images, parent, victim, testenv.Criu(t)))
		out := testenv.Exits(t, host, 1, "dump", "-t", job.Root(), "-D", images, "--criu", swapping)
		if !strings.Contains(out, "replaced") {
			t.Errorf("the error does not say why:\n%s", out)
		}
		for _, dir := range []string{victim, filepath.Join(parent, "moved")} {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%s: %v, %v", dir, left, err)
			}
		}
		job.Runs()
		links, err := filepath.Glob(images + ".partial-*")
		if err != nil || len(links) != 1 {
			t.Fatalf("%v, %v, want the one link", links, err)
		}
		if err := errors.Join(os.Remove(links[0]), os.RemoveAll(images)); err != nil { // a link of that name was published
			t.Fatal(err)
		}
		out = testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		if n := strings.Count(out, "others can remove or replace the image"); n != 1 {
			t.Errorf("%d warnings about the parent, want one:\n%s", n, out)
		}
		testenv.WholeImage(t, images)
	})
}
