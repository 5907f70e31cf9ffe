package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/core/journal"
	"cucriu/internal/testenv"
)

// node names the device node of a GPU. Without it, nobody sees the GPU.
func node(host *testenv.Host, gpu int) string {
	return filepath.Join(host.Dir, "dev/nvidia"+strconv.Itoa(gpu))
}

func hidden(host *testenv.Host, gpu int) string {
	return filepath.Join(host.Dir, strconv.Itoa(gpu)+".hidden")
}

func hide(t *testing.T, host *testenv.Host, gpu int) {
	t.Helper()
	if err := os.Rename(node(host, gpu), hidden(host, gpu)); err != nil {
		t.Fatal(err)
	}
}

func show(t *testing.T, host *testenv.Host, gpu int) {
	t.Helper()
	if err := os.Rename(hidden(host, gpu), node(host, gpu)); err != nil {
		t.Fatal(err)
	}
}

// restoreThrough restores a job with plain criu, and runs a command line at one of criu's stages, before the hook does.
func restoreThrough(t *testing.T, host *testenv.Host, images, stage, command string) (log string, err error) {
	t.Helper()
	script := testenv.Script(t, fmt.Sprintf("[ \"$CRTOOLS_SCRIPT_ACTION\" != %s ] || { %s; }", stage, command))
	out, err := host.CriuCommandScripts("restore", images, []string{host.HookBin, script}, "-d").CombinedOutput()
	written, _ := os.ReadFile(filepath.Join(images, "restore.log"))
	t.Logf("%v\n%s", err, out)
	return string(out) + string(written), err
}

// TestARestoreFollowsThePlanOfPreRestore: whatever the configuration and the host are by the time of post-resume, and
// whether the hook or the watcher completes it.
func TestARestoreFollowsThePlanOfPreRestore(t *testing.T) {
	for name, failpoint := range map[string]string{"hook": "", "watcher": "restore.post-resume=kill"} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 3)
				hide(t, host, 2)
				job := host.Start(1, "--gpus", "0,1")
				images := host.Dump(job)
				show(t, host, 2)
				hide(t, host, 1) // so GPU 2 takes its place
				configuration := host.Config("version: 1\nlock: {timeout: 60s}\n")
				host.Setenv("CUCRIU_CONFIG", configuration)
				if failpoint != "" {
					host.UseFailpoint(failpoint)
				}
				other := host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}]}\n")
				log, err := restoreThrough(t, host, images, "pre-resume", fmt.Sprintf("mv %s %s && mv %s %s",
					hidden(host, 1), node(host, 1), other, configuration))
				if err != nil {
					t.Fatalf("%v\n%s", err, log)
				}
				isOn(t, host, job, 0, 2)
			})
		})
	}
}

// TestARestoreThatAnEarlierVersionHasBegunMakesItsPlanWhenItIsUsed, and records it: its journal has none.
func TestARestoreThatAnEarlierVersionHasBegunMakesItsPlanWhenItIsUsed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0,1")
		images := host.Dump(job)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\ngpus: {map: [{from: {index: 0}, to: {index: 1}}]}\n"))
		reached, goOn := filepath.Join(t.TempDir(), "reached"), filepath.Join(t.TempDir(), "go-on")
		done := make(chan error, 1)
		go func() {
			wait := fmt.Sprintf("touch %s; while [ ! -e %s ]; do sleep 0.02; done", reached, goOn)
			_, err := restoreThrough(t, host, images, "pre-resume", wait)
			done <- err
		}()
		testenv.Eventually(t, testenv.Soon, "criu is at pre-resume", func() bool { return testenv.Exists(reached) })
		change := func(change func(s *journal.Session)) {
			all := host.Sessions()
			s, err := journal.Load(all[len(all)-1].Dir(), true)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Unlock()
			change(s)
		}
		change(func(s *journal.Session) {
			if s.Kind != journal.KindRestore || len(s.Plan) != 2 {
				t.Errorf("a %s with the plan %v", s.Kind, s.Plan)
			}
			s.Plan = nil
			if err := s.Save(); err != nil {
				t.Error(err)
			}
		})
		testenv.WriteFile(t, goOn, "")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		isOn(t, host, job, 1, 0)
		change(func(s *journal.Session) {
			if len(s.Plan) != 2 || s.Plan[0].New.String() != host.UUIDs()[1] || len(s.Members[0].Pairs) != 2 {
				t.Errorf("recorded: %v, of the process: %v", s.Plan, s.Members[0].Pairs)
			}
		})
	})
}

// TestARestoreWhoseGPUDisappearsFails: what was not checked beforehand is not done. The image is as it was, and the
// next restore makes another plan.
func TestARestoreWhoseGPUDisappearsFails(t *testing.T) {
	for name, failpoint := range map[string]string{"hook": "", "watcher": "restore.post-resume=kill"} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 3)
				hide(t, host, 2)
				job := host.Start(2, "--procs", "2", "--gpus", "0,1")
				images := host.Dump(job)
				show(t, host, 2)
				if failpoint != "" {
					host.UseFailpoint(failpoint)
				}
				log, _ := restoreThrough(t, host, images, "pre-resume", "mv "+node(host, 1)+" "+hidden(host, 1))
				ended := func() bool { return host.RestoreOutcome() != "" }
				testenv.Eventually(t, testenv.Soon, "the restore has an outcome", ended)
				if outcome := host.RestoreOutcome(); outcome != "killed" || job.Alive() {
					t.Fatalf("outcome %q, the job lives: %v\n%s", outcome, job.Alive(), log)
				}
				said := testenv.Exits(t, host, 0, "status", "--json")
				uuid := host.UUIDs()[1]
				cause := " on " + uuid + ", which is not visible any more; restore or resume again"
				for _, words := range []string{"process ", " (cudawork): GPU map: ", cause} {
					if !strings.Contains(said, words) {
						t.Errorf("status does not say %q:\n%s", words, said)
					}
				}
				host.Setenv("CUCRIU_FAILPOINT", "")
				host.Restore(images)
				isOn(t, host, job, 0, 2)
			})
		})
	}
}

// TestAResumeWhoseGPUDisappearsLeavesTheJobSuspended, and the next one makes another plan, even if the job was left to
// the watcher in between.
func TestAResumeWhoseGPUDisappearsLeavesTheJobSuspended(t *testing.T) {
	for name, then := range map[string]string{"command": "", "killed": "+kill"} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 3)
				hide(t, host, 2)
				job := host.Start(1, "--gpus", "0,1")
				testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
				show(t, host, 2)
				move := testenv.Script(t, "mv "+node(host, 1)+" "+hidden(host, 1))
				out, err := testenv.Failing(t, host, "suspend.resume=run "+move+then, "resume", "-p", job.Root())
				uuid := host.UUIDs()[1]
				if then != "" {
					out, err = host.Cucriu("recover") // as a watcher would
				}
				if err == nil || !strings.Contains(out, uuid+", which is not visible any more") {
					t.Fatalf("it does not say which GPU is gone: %v\n%s", err, out)
				}
				if !job.Stopped() {
					t.Fatal("the job is not suspended any more")
				}
				testenv.Exits(t, host, 0, "resume", "-p", job.Root())
				isOn(t, host, job, 0, 2)
			})
		})
	}
}
