package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestTakenPIDsAreForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.DumpAndLeave(t, host, job, "-R")
		found := testenv.Foretold(t, host, "restore", preflight.FindingPIDTaken, "-D", images)
		if found.PID != job.PID || !strings.HasPrefix(found.String(), fmt.Sprintf("pid-taken: process %d (cudawork): ", job.PID)) {
			t.Errorf("neither the pid nor who has it is named: %v", found)
		}
		plain := host.TryRestore(images) // by criu itself, with the hook as its action script
		if words := "refused, nothing was touched: " + found.String(); plain.Err == nil || !strings.Contains(plain.Log, words) {
			t.Errorf("criu restore: %v; want %q\n%s", plain.Err, words, plain.Lines())
		}
		job.Runs()
		job.Kill()
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.NoErrors(t, host, "-D", images)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

func TestAnImageThatLacksFilesIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--loaders", "2") // which share memory
		tids, err := proc.Threads(job.PID)
		if err != nil || len(tids) < 2 {
			t.Fatalf("threads %v: %v", tids, err)
		}
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		names := []string{"pstree.img", "files.img", fmt.Sprintf("core-%d.img", slices.Max(tids))}
		for _, kind := range []string{"core", "mm", "pagemap", "fs", "ids"} {
			names = append(names, fmt.Sprintf("%s-%d.img", kind, job.PID))
		}
		for _, pattern := range []string{"fdinfo-*.img", "pages-*.img"} {
			found, err := filepath.Glob(filepath.Join(images, pattern))
			if err != nil || len(found) == 0 {
				t.Fatalf("%s: %v", pattern, err)
			}
			for _, path := range found {
				names = append(names, filepath.Base(path))
			}
		}
		for _, name := range names {
			path := filepath.Join(images, name)
			if err := os.Rename(path, images+".away"); err != nil {
				t.Fatal(err)
			}
			found := testenv.Foretold(t, host, "restore", preflight.FindingImage, "-D", images)
			if !strings.Contains(found.Message, path) {
				t.Errorf("%s is not named: %v", name, found)
			}
			if err := os.Rename(images+".away", path); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

func TestADirectoryThatIsNoImageIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := t.TempDir()
		empty, other, file := filepath.Join(dir, "empty"), filepath.Join(dir, "other"), filepath.Join(dir, "other", "file")
		if err := errors.Join(os.Mkdir(empty, 0o700), os.Mkdir(other, 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		for path, says := range map[string]string{
			filepath.Join(dir, "nowhere"): "does not exist", empty: "is empty", file: "not a directory", other: "neither a criu image",
		} {
			if found := testenv.Foretold(t, host, "restore", preflight.FindingImage, "-D", path); !strings.Contains(found.Message, says) {
				t.Errorf("%s: %v does not say %q", path, found, says)
			}
		}
	})
}
