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
		refused bool
	}{
		"absent":                   {nil, false},
		"a mount point":            {[]string{"lost+found/x"}, false},
		"killed before its record": {[]string{"lock"}, false},
		"its record moved aside":   {[]string{"lock", "owner.json", "checkpoints/000001/x", "job.json.old"}, false},
		"removed, output kept":     {[]string{"output.log"}, false},
		"a job with own files":     {[]string{recordName, "train.py"}, false},
		"somebody's files":         {[]string{"train.py", "checkpoints/model.pt"}, true},
		"an image":                 {[]string{"inventory.img", "pages-1.img"}, true},
	} {
		dir := filepath.Join(t.TempDir(), "D")
		for _, file := range test.files {
			path := filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if err := checkNew(dir); (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
