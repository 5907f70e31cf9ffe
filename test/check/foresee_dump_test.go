package check

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestADirectoryThatADumpCannotUseIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		dir := t.TempDir()
		full, file, mount := filepath.Join(dir, "full"), filepath.Join(dir, "file"), filepath.Join(dir, "mount")
		testenv.SmallDisk(t, mount, "2g")
		readOnly := filepath.Join(dir, "read-only")
		testenv.SmallDisk(t, readOnly, "2g")
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
		open := filepath.Join(dir, "open")
		if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
			t.Fatal(err)
		}
		before := tree()
		for _, test := range []struct{ dir, says string }{
			{full, "not empty"},
			{file, "not a directory"},
			{mount, "is a mount point"},
			{filepath.Join(open, "nowhere", "images"), "could replace it"},
			{filepath.Join(file, "images"), "is not a directory"},
			{filepath.Join(readOnly, "images"), "read-only"},
		} {
			found := testenv.Foretold(t, host, "dump", preflight.FindingImageDirectory, "-t", job.Root(), "-D", test.dir)
			if !strings.Contains(found.Message, test.says) {
				t.Errorf("%s: %v does not say %q", test.dir, found, test.says)
			}
		}
		if after := tree(); after != before {
			t.Errorf("a refusal is to touch nothing, but left\n%s\nof\n%s", after, before)
		}
		job.Runs()
		images := filepath.Join(dir, "images")
		testenv.NoErrors(t, host, "-t", job.Root(), "-D", images) // it does not exist yet
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
	})
}

func TestASuspendedJobIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
		found := testenv.Foretold(t, host, "dump", preflight.FindingSession, "-t", job.Root(), "-D", images)
		if !strings.Contains(found.Remedy, "cucriu resume -p "+job.Root()) {
			t.Errorf("the remedy is not the resume: %v", found)
		}
		if run := host.TryDump(job, t.TempDir()); run.Err == nil || !strings.Contains(run.Log, found.Message+": "+found.Remedy) {
			t.Errorf("criu dump says nothing of %q: %v\n%s", found.Message, run.Err, run.Lines())
		}
		testenv.Exits(t, host, 0, "resume", "-p", job.Root())
		testenv.NotDumped(t, job, images)
	})
}

// TestADumpThatIsAtWorkIsForetold, as a warning: another dump would wait for it.
func TestADumpThatIsAtWorkIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		sessions := func() preflight.Findings {
			t.Helper()
			return slices.DeleteFunc(testenv.Check(t, host, "-t", job.Root()), func(f preflight.Finding) bool { return f.Name != preflight.FindingSession })
		}
		if found := sessions(); len(found) > 0 {
			t.Errorf("there is no other dump: %v", found)
		}
		held := testenv.HoldDump(t, host, job, "pre-dump")
		found := sessions()
		if len(found) != 1 || found[0].Severity != preflight.SeverityWarning || !strings.Contains(found[0].Message, strconv.Itoa(held.PID())) {
			t.Errorf("want a warning that names criu, process %d: %v", held.PID(), found)
		}
		if err := held.End(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestALockedJobIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "lock", "-p", job.Root())
		testenv.Foretold(t, host, "dump", preflight.FindingCUDAState, "-t", job.Root(), "-D", images)
		testenv.Exits(t, host, 0, "unlock", "-p", job.Root())
		testenv.NotDumped(t, job, images)
	})
}

func TestWhatIsNoRunningProcessIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		dump := func(name string, pid int) preflight.Finding {
			t.Helper()
			return testenv.Foretold(t, host, "dump", name, "-t", strconv.Itoa(pid), "-D", images)
		}
		dump(preflight.FindingNoProcess, 4194304)
		tids, err := proc.Threads(job.PID)
		if err != nil || len(tids) < 2 {
			t.Fatalf("threads %v: %v", tids, err)
		}
		if found := dump(preflight.FindingNoProcess, slices.Max(tids)); !strings.Contains(found.Remedy, job.Root()) {
			t.Errorf("whose thread it is is not said: %v", found)
		}
		zombie := exec.Command("true")
		if err := zombie.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "it is a zombie", func() bool {
			status, err := proc.ReadStatus(zombie.Process.Pid)
			return err == nil && status.Ended
		})
		if found := dump(preflight.FindingZombie, zombie.Process.Pid); !strings.Contains(found.Message, strconv.Itoa(os.Getpid())) {
			t.Errorf("its parent is not named: %v", found)
		}
		if err := zombie.Wait(); err != nil {
			t.Fatal(err)
		}
		testenv.NotDumped(t, job, images)
	})
}

func TestADumpOfItsOwnAncestorIsForetold(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		images := testenv.NewImages(t)
		program := testenv.Artefact(t, "make build", "bin", "cucriu")
		words := make(map[string]string)
		for _, verb := range []string{"check", "dump"} {
			out, err := host.Command("/bin/sh", "-c", `"$0" "$@" -t $$; exit $?`, program, verb, "-D", images, "--criu", testenv.Criu(t)).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != testenv.StatusRefused {
				t.Fatalf("cucriu %s: %v\n%s", verb, err, out)
			}
			said := regexp.MustCompile(`is in the tree to be dumped[^:\n]*`).Find(out)
			if !strings.Contains(string(out), preflight.FindingCriuInside) || said == nil {
				t.Fatalf("cucriu %s:\n%s", verb, out)
			}
			words[verb] = string(said)
		}
		if words["check"] != words["dump"] {
			t.Errorf("check says %q, dump %q", words["check"], words["dump"])
		}
		if sessions := host.Sessions(); len(sessions) != 0 {
			t.Errorf("sessions %+v", sessions)
		}
		testenv.NoPartialImage(t, images)
	})
}
