package jobs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestAJobBeginsInADirectoryOfItsOwn: new, empty, or with what a start that was killed, a removal or a lost
// record leaves.
func TestAJobBeginsInADirectoryOfItsOwn(t *testing.T) {
	for name, test := range map[string]struct {
		files   []string
		mode    os.FileMode
		refused bool
	}{
		"absent":                   {nil, 0, false},
		"a mount point":            {[]string{"lost+found/x"}, 0o755, false},
		"killed before its record": {[]string{"lock"}, 0o700, false},
		"its record moved aside":   {[]string{"lock", "owner.json", "checkpoints/000001/x", "job.json.old"}, 0o700, false},
		"removed, output kept":     {[]string{"output.log"}, 0o700, false},
		"a job with own files":     {[]string{recordName, "train.py"}, 0o755, false},
		"somebody's files":         {[]string{"train.py", "checkpoints/model.pt"}, 0o755, true},
		"somebody's private files": {[]string{"train.py", "checkpoints/model.pt"}, 0o700, false},
		"an image":                 {[]string{"inventory.img", "pages-1.img"}, 0o700, true},
	} {
		dir := filepath.Join(t.TempDir(), "D")
		for _, file := range test.files {
			path := filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if test.mode != 0 {
			if err := os.Chmod(dir, test.mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := checkNew(dir); (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
