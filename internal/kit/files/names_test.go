package files

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestACheckpointThatNamesTheOutputByAnotherPathIsFound: the job's directory was renamed, and is back.
func TestACheckpointThatNamesTheOutputByAnotherPathIsFound(t *testing.T) {
	for title, tt := range map[string]struct {
		aside bool // when the files were described
		named string
		found bool
	}{
		"always in its place":            {named: "job/output.log"},
		"aside when they were described": {aside: true, named: "job/output.log", found: true},
		"aside when criu looked":         {named: "aside/output.log", found: true},
		"aside all the time":             {aside: true, named: "aside/output.log", found: true},
		"the job's own file of the name": {named: "data/output.log"},
		"one in its own directory":       {named: "tmp/output.log"},
	} {
		t.Run(title, func(t *testing.T) {
			top := tempDir(t)
			at := func(path string) string { return filepath.Join(top, path) }
			must(t, errors.Join(os.Mkdir(at("job"), 0o700), os.Mkdir(at("data"), 0o700), os.Mkdir(at("tmp"), 0o700)))
			const appending = unix.O_WRONLY | unix.O_APPEND
			root := startJob(t, jobFile(write(t, at("job/output.log"), "said"), appending), jobFile(write(t, at("data/output.log"), "own"), unix.O_RDWR))
			if tt.aside {
				must(t, os.Rename(at("job"), at("aside")))
			}
			checkpoint := save(t, root, Options{Except: []string{at("job/output.log")}, PrivateTmp: at("tmp")})
			if tt.aside {
				must(t, os.Rename(at("aside"), at("job")))
			}
			must(t, os.Remove(at("data/output.log"))) // it is put back
			err := CheckNames(checkpoint, at("job/output.log"), []string{at(tt.named), "/usr/bin/program"})
			if other := new(OtherNameError); errors.As(err, &other) != tt.found || !tt.found && err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}
