package dump

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestADumpIntoADirectoryThatIsInUseIsRefused before it touches anything. Otherwise each
// dump would remove the other's files, and both jobs would be ended.
func TestADumpIntoADirectoryThatIsInUseIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job, other, plain := host.Start(1), host.Start(1), startPlain(t, host)
		elsewhere := host.For(t)
		elsewhere.Setenv("CUCRIU_RUN_DIR", filepath.Join(t.TempDir(), "run"))
		held := testenv.HoldDump(t, host, job, "pre-dump")
		for name, try := range map[string]struct {
			host *testenv.Host
			job  *testenv.Job
		}{
			"another job":                           {host, other},
			"another job, with another run folder":  {elsewhere, other},
			"a job without CUDA":                    {host, plain},
			"the same, with another run folder":     {elsewhere, plain},
			"the same job, with another run folder": {elsewhere, job},
		} {
			run := try.host.TryDump(try.job, held.Images)
			if run.Err == nil || !strings.Contains(run.Log, "in use by") {
				t.Fatalf("%s: %v\n%s", name, run.Err, run.Lines())
			}
		}
		if sessions := host.Sessions(); len(sessions) != 1 {
			t.Fatalf("%d sessions, want the first dump's alone", len(sessions))
		}
		other.Runs()
		if err := held.End(); err != nil {
			t.Fatalf("the first dump: %v", err)
		}
		host.WaitOutcome("dumped")
		host.Restore(held.Images)
		job.Runs()
	})
}

func TestADumpWithoutCUDAClaimsItsDirectory(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		held := testenv.HoldDump(t, host, startPlain(t, host), "pre-dump")
		if run := host.TryDump(job, held.Images); run.Err == nil || !strings.Contains(run.Log, "in use by") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		job.Runs()
		if err := held.End(); err != nil {
			t.Fatalf("the first dump: %v", err)
		}
	})
}

// TestTheCallerMayLockTheImageDirectory: a script keeps two of its dumps apart with
// flock(1).
func TestTheCallerMayLockTheImageDirectory(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := t.TempDir()
		criu := host.CriuCommand("dump", images, "-t", job.Root())
		if out, err := host.Command("flock", append([]string{images}, criu.Args...)...).CombinedOutput(); err != nil {
			t.Fatalf("flock criu dump: %v\n%s", err, out)
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		host.Restore(images)
		job.Runs()
	})
}

// TestAJobWhoseImageIsNotWholeIsNotEnded: at post-dump criu asks whether to end the job.
func TestAJobWhoseImageIsNotWholeIsNotEnded(t *testing.T) {
	testenv.Parallel(t)
	for name, spoil := range map[string]string{
		"page-files-gone":      `rm cucriu-pages-*`,
		"a-page-file-replaced": `f=$(ls cucriu-pages-* | head -1); cp "$f" copy; mv copy "$f"`,
		"manifest-gone":        `rm cucriu.json`,
		"manifest-changed":     `echo >>cucriu.json`,
		"criu-images-gone":     `rm core-*.img`,
		"all-gone":             `rm -r *`,
		"another-directory":    `mv "$D" "$D.old" && cp -r "$D.old" "$D"`,
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(2, "--procs", "2", "--mib", "4", "--spin", "stream-sync")
				images := filepath.Join(t.TempDir(), "images")
				cleaner := testenv.Script(t, fmt.Sprintf(`[ "$CRTOOLS_SCRIPT_ACTION" = post-dump ] || exit 0; D=%s; cd $D; %s`, images, spoil))
				// The cleaner runs before our hook.
				cmd := host.CriuCommandScripts("dump", images, []string{host.HookBin, cleaner}, "-t", job.Root(), "-o", filepath.Join(t.TempDir(), "log"))
				out, err := cmd.CombinedOutput()
				if err == nil {
					t.Fatalf("the dump succeeded, and its image is not whole\n%s", out)
				}
				host.WaitOutcome("running")
				job.Runs()
			})
		})
	}
}

// TestAnotherPIDNamespaceLeavesASessionAlone: a program there shares the run directory and
// sees the journal, but sees neither criu nor the job.
func TestAnotherPIDNamespaceLeavesASessionAlone(t *testing.T) {
	testenv.Parallel(t)
	for name, namespaces := range map[string][]string{
		"pid":          {"--pid", "--fork", "--mount-proc"},
		"pid-and-time": {"--pid", "--time", "--boottime", "1000003", "--fork", "--mount-proc"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				held := testenv.HoldDump(t, host, job, "pre-dump")
				inside := func(program string, args ...string) string {
					t.Helper()
					out, err := host.Command("unshare", append(append(namespaces, program), args...)...).CombinedOutput()
					if err != nil {
						t.Fatalf("%s: %v\n%s", program, err, out)
					}
					return string(out)
				}
				cucriu := host.CucriuCommand().Path
				if out := inside(cucriu, "recover"); !strings.Contains(out, "nothing to recover") {
					t.Fatalf("cucriu recover: %s", out)
				}
				if out := inside(cucriu, "status"); !strings.Contains(out, "in another pid namespace") {
					t.Fatalf("cucriu status: %s", out)
				}
				if got := host.LastOutcome(); got != "" {
					t.Fatalf("the session was closed: %s", got)
				}
				if err := held.End(); err != nil {
					t.Fatalf("criu dump: %v", err)
				}
				host.WaitOutcome("dumped")
				host.Restore(held.Images)
				job.Runs()
			})
		})
	}
}
