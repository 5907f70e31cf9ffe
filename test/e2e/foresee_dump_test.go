package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

func TestADirectoryThatADumpCannotUseIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		dir := t.TempDir()
		full, file, mount := filepath.Join(dir, "full"), filepath.Join(dir, "file"), filepath.Join(dir, "mount")
		testenv.SmallDisk(t, mount, "512m")
		readOnly := filepath.Join(dir, "read-only")
		testenv.SmallDisk(t, readOnly, "512m")
		if out, err := exec.Command("mount", "-o", "remount,ro", readOnly).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		err := errors.Join(os.Mkdir(full, 0o700), os.WriteFile(filepath.Join(full, "precious"), nil, 0o600), os.WriteFile(file, nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		tree := func() string {
			var names []string
			err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				names = append(names, path)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return strings.Join(names, "\n")
		}
		before := tree()
		for _, test := range []struct{ dir, says string }{
			{full, "not empty"},
			{file, "not a directory"},
			{mount, "is a mount point"},
			{filepath.Join(dir, "nowhere", "images"), "no such file"},
			{filepath.Join(file, "images"), "is not a directory"},
			{filepath.Join(readOnly, "images"), "read-only"},
		} {
			found := foretold(t, host, "dump", preflight.FindingImageDirectory, "-t", job.Root(), "-D", test.dir)
			if !strings.Contains(found.Message, test.says) {
				t.Errorf("%s: %v does not say %q", test.dir, found, test.says)
			}
		}
		if after := tree(); after != before {
			t.Errorf("a refusal is to touch nothing, but left\n%s\nof\n%s", after, before)
		}
		job.Runs()
		images := filepath.Join(dir, "images")
		noErrors(t, host, "-t", job.Root(), "-D", images) // it does not exist yet
		cucriu(t, host, 0, "dump", "-t", job.Root(), "-D", images)
	})
}
