package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
	"cucriu/internal/testenv"
)

// foretold fails the test unless cucriu check finds exactly one error, and a dump or restore
// is refused for it in the same words, with nothing touched. options are those of both.
func foretold(t *testing.T, host *testenv.Host, verb, name string, options ...string) preflight.Finding {
	t.Helper()
	found := only(t, check(t, host, options...), name)
	before := len(host.Sessions())
	words := "refused, nothing was touched: " + found.String()
	if out := cucriu(t, host, turnedDown, append([]string{verb}, options...)...); !strings.Contains(out, words) {
		t.Errorf("cucriu %s says nothing of %q:\n%s", verb, words, out)
	}
	if after := len(host.Sessions()); after != before {
		t.Errorf("a refusal is to touch nothing, but there are %d sessions after %d", after, before)
	}
	return found
}

// noErrors fails the test if cucriu check finds an error.
func noErrors(t *testing.T, host *testenv.Host, options ...string) {
	t.Helper()
	if errs := check(t, host, options...).Of(preflight.SeverityError); len(errs) > 0 {
		t.Fatalf("cucriu check %v found %+v", options, errs)
	}
}

func TestTakenPIDsAreForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := dumpAndLeave(t, host, job, "-R")
		found := foretold(t, host, "restore", preflight.FindingPIDTaken, "-D", images)
		if found.PID != job.PID || found.Process == "" || !strings.Contains(found.Message, "pid "+job.Root()) {
			t.Errorf("neither the pid nor who has it is named: %v", found)
		}
		plain := host.TryRestore(images) // by criu itself, with the hook as its action script
		if words := "refused, nothing was touched: " + found.String(); plain.Err == nil || !strings.Contains(plain.Log, words) {
			t.Errorf("criu restore: %v; want %q\n%s", plain.Err, words, plain.Lines())
		}
		job.Runs()
		job.Kill()
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		noErrors(t, host, "-D", images)
		cucriu(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

func TestPIDsOfAnotherNamespaceAreNotTaken(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		namespace := newPIDNamespace(t, host)
		job := host.StartUnder(namespace.enter(), 1)
		children, err := proc.Children(job.PID)
		if err != nil || len(children) != 1 {
			t.Fatal(children, err)
		}
		job.PID = children[0]
		status, err := proc.ReadStatus(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		images := t.TempDir()
		namespace.dump(job.PID, images)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", status.ImagePID())); err != nil {
			t.Fatalf("nobody outside has the pid %d, so this test shows nothing: %v", status.ImagePID(), err)
		}
		noErrors(t, host, "-D", images)
		if run := namespace.restore(images); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		job.PID = namespace.find(status.ImagePID())
		job.Runs()
	})
}

func TestAnImageThatLacksFilesIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		tids, err := proc.Threads(job.PID)
		if err != nil || len(tids) < 2 {
			t.Fatalf("threads %v: %v", tids, err)
		}
		images := newImages(t)
		cucriu(t, host, 0, "dump", "-t", job.Root(), "-D", images)
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
			names = append(names, filepath.Base(found[0]))
		}
		for _, name := range names {
			path := filepath.Join(images, name)
			if err := os.Rename(path, images+".away"); err != nil {
				t.Fatal(err)
			}
			found := foretold(t, host, "restore", preflight.FindingImage, "-D", images)
			if !strings.Contains(found.Message, path) {
				t.Errorf("%s is not named: %v", name, found)
			}
			if err := os.Rename(images+".away", path); err != nil {
				t.Fatal(err)
			}
		}
		cucriu(t, host, 0, "restore", "-D", images)
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
			filepath.Join(dir, "nowhere"): "no such file", empty: "is empty", file: "not a directory", other: "neither an image of criu",
		} {
			if found := foretold(t, host, "restore", preflight.FindingImage, "-D", path); !strings.Contains(found.Message, says) {
				t.Errorf("%s: %v does not say %q", path, found, says)
			}
		}
	})
}
