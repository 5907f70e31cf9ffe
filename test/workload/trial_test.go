package workload

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// TestATrialRestoreTellsWhatTheRestoreWillTell of each odd process that criu dumps, refused by a
// check or not: one that cannot be restored is not ended.
func TestATrialRestoreTellsWhatTheRestoreWillTell(t *testing.T) {
	testenv.Parallel(t)
	found := 0
	for _, row := range odd {
		if row.finding == preflight.FindingUnsupportedFile || row.finding == preflight.FindingUNIXSocket || row.finding == preflight.FindingUnsupportedProcess || row.finding == preflight.FindingNamespace && !strings.Contains(criuDumps, row.kind) {
			continue
		}
		if slices.Contains(notShown, row.kind) {
			continue
		}
		if row.finding != "" {
			found++
		}
		t.Run(row.kind, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				if row.kind == "child-mount-namespace" {
					testenv.WithoutParts(t)
				}
				host, p := newOdd(t, row.kind)
				images := filepath.Join(t.TempDir(), "images")
				args := []string{"dump", "--probe", "--json", "-t", p.Root(), "-D", images}
				if row.finding != "" {
					args = append(args, "--force", row.finding)
				}
				out, status := cucriu(t, host, args...)
				switch {
				case row.finding == "" && (status != 0 || trialOf(t, out).Outcome != image.TrialRestores):
					t.Fatalf("cucriu dump: %d\n%s", status, out)
				case row.finding == "":
					if out, status := cucriu(t, host, "restore", "-D", images); status != 0 {
						t.Fatalf("LOST: a trial restored it, and cucriu restore ends with %d\n%s", status, out)
					}
				case status != failed || !strings.Contains(out, "the trial restore has shown") || testenv.Exists(images):
					t.Fatalf("cucriu dump: %d\n%s", status, out)
				}
				p.asItWas()
			})
		})
	}
	if found < 5 {
		t.Errorf("only %d kinds cannot be restored", found)
	}
}

// criuDumps are the namespaces of a child that criu dumps and does not restore.
const criuDumps = "child-mount-namespace child-network-namespace"

// TestATrialRestoreTouchesNothing of the job beside which it goes on.
func TestATrialRestoreTouchesNothing(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host, p := newOdd(t, "names")
		for range 2 {
			out, status := cucriu(t, host, "dump", "--probe", "--json", "-R", "-t", p.Root(), "-D", filepath.Join(t.TempDir(), "images"))
			if status != 0 || trialOf(t, out).Outcome != image.TrialRestores {
				t.Fatalf("cucriu dump: %d\n%s", status, out)
			}
			p.asItWas()
		}
	})
}

// TestADumpThatEndsDuringItsTrialEndsNoJob, whether it is given up or killed, and leaves no sandbox.
func TestADumpThatEndsDuringItsTrialEndsNoJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host, p := newOdd(t, "names")
		criu := filepath.Join(t.TempDir(), "criu")
		// In the sandbox, its parent is the first process.
		script := "#!/bin/sh\n[ $PPID = 1 ] && exec sleep 987654\nexec " + testenv.Criu(t) + ` "$@"` + "\n"
		if err := os.WriteFile(criu, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		hangs := func() bool {
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			return slices.ContainsFunc(files, func(path string) bool {
				line, _ := os.ReadFile(path)
				return string(line) == "sleep\x00987654\x00"
			})
		}
		for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGKILL} {
			images := filepath.Join(t.TempDir(), "images")
			cmd := host.CucriuCommand("dump", "--probe", "--criu", criu, "-t", p.Root(), "-D", images)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, testenv.Soon, "the trial hangs", hangs)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Errorf("%v: the dump has succeeded", sig)
			}
			testenv.Eventually(t, testenv.Soon, "the sandbox is gone", func() bool { return !hangs() })
			p.asItWas()
			if testenv.Exists(images) {
				t.Errorf("%v: there is an image directory", sig)
			}
		}
	})
}

// trialOf returns the trial restore in the summary of a dump.
func trialOf(t *testing.T, out string) image.Trial {
	t.Helper()
	var summary struct{ Trial image.Trial }
	if err := json.Unmarshal([]byte(out[strings.Index(out, "\n{")+1:]), &summary); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return summary.Trial
}

// oddProcess is a process that is odd in one way, beside a CUDA process.
type oddProcess struct {
	*testenv.Job
	t   *testing.T
	dir string
}

func newOdd(t *testing.T, kind string) (*testenv.Host, oddProcess) {
	t.Helper()
	host := testenv.NewHost(t, 1)
	p := oddProcess{t: t, dir: t.TempDir()}
	program := testenv.Artefact(t, "make workload", "build", "workload", "odd")
	p.Job = host.StartUnder([]string{"/bin/sh", "-c", `odd=$1 kind=$2 dir=$3; shift 3; "$@" & exec $odd $kind $dir`, "sh", program, kind, p.dir}, 1)
	testenv.Eventually(t, testenv.Soon, "it is "+kind, func() bool {
		if why, err := os.ReadFile(filepath.Join(p.dir, "not-here")); err == nil {
			t.Skipf("this kernel does not have it: %s", why)
		}
		return testenv.Exists(filepath.Join(p.dir, "ready"))
	})
	return host, p
}

// asItWas has the process look whether it is still what it was.
func (p oddProcess) asItWas() {
	p.t.Helper()
	ask, answer := filepath.Join(p.dir, "ask"), filepath.Join(p.dir, "answer")
	testenv.WriteFile(p.t, ask, "")
	// It removes the request last: one that is made before would be lost.
	testenv.Eventually(p.t, testenv.Soon, "the odd process answers", func() bool { return testenv.Exists(answer) && !testenv.Exists(ask) })
	if text, err := os.ReadFile(answer); err != nil || string(text) != "as it was" {
		p.t.Fatalf("%s: %v", text, err)
	}
	if err := os.Remove(answer); err != nil {
		p.t.Fatal(err)
	}
	p.Runs()
}
