package dump

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// frozenGroup moves a job into a control group of the v1 freezer, and returns a function
// that writes to its files.
func frozenGroup(t *testing.T, job *testenv.Job) (dir string, write func(name, text string)) {
	t.Helper()
	const hierarchy = "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(filepath.Join(hierarchy, "cgroup.procs")); err != nil {
		t.Skip("this kernel mounts no v1 freezer hierarchy")
	}
	dir = filepath.Join(hierarchy, "cucriu-e2e-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write = func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		write("freezer.state", "THAWED") // a frozen process does not die
		job.Kill()
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	write("cgroup.procs", job.Root())
	write("freezer.state", "FROZEN")
	testenv.Eventually(t, testenv.Soon, "the group is frozen", func() bool {
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return err == nil && strings.TrimSpace(string(state)) == "FROZEN"
	})
	return dir, write
}

func TestAPausedJobThatIsRefusedHasNotRun(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--share-files", "--tick-ms", "0")
		dir, write := frozenGroup(t, job)
		before := job.Ticks()
		run := host.TryDump(job, t.TempDir(), "--freeze-cgroup", dir, "--manage-cgroups=ignore")
		if run.Err == nil || !strings.Contains(run.Log, "refused, nothing was touched: "+preflight.FindingNVIDIADevice) {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		if after := job.Ticks(); !slices.Equal(after, before) {
			t.Errorf("refused, and the paused job went on from %v to %v", before, after)
		}
		if state, err := os.ReadFile(filepath.Join(dir, "freezer.state")); err != nil || strings.TrimSpace(string(state)) != "FROZEN" {
			t.Errorf("the group is %s (%v) after a refusal", state, err)
		}
		if sessions := host.Sessions(); len(sessions) != 0 {
			t.Errorf("a refusal made a session: %+v", sessions)
		}
		write("freezer.state", "THAWED")
		job.Runs()
	})
}

// If a hook is killed or fails before it has locked anything, the paused job stays paused.
func TestAPausedJobStaysPausedIfTheHookEndsEarly(t *testing.T) {
	testenv.Parallel(t)
	for _, point := range []string{"dump.inspect=kill", "dump.inspect=error", "dump.thawed=kill", "dump.thawed=error"} {
		t.Run(strings.ReplaceAll(point, "=", " "), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--tick-ms", "0")
				dir, write := frozenGroup(t, job)
				host.UseFailpoint(point)
				run := host.TryDump(job, filepath.Join(t.TempDir(), "images"), "--freeze-cgroup", dir, "--manage-cgroups=ignore")
				if run.Err == nil {
					t.Fatal("dumped without its hook")
				}
				testenv.Eventually(t, testenv.Soon, "the group is frozen", func() bool {
					state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
					sessions := host.Sessions() // the last one says that the job is paused, or has ended
					return err == nil && strings.TrimSpace(string(state)) == "FROZEN" && (len(sessions) == 0 || sessions[len(sessions)-1].Message != "")
				})
				write("freezer.state", "THAWED") // as the engine would
				if len(host.Sessions()) > 0 {
					host.WaitOutcome("running")
				}
				job.Runs()
			})
		})
	}
}

// TestWhoeverIsKilledBeforeThePauseHasGivenTheRestBack: the hook, on its way back, and then the watcher, once the engine has
// resumed the job.
func TestWhoeverIsKilledBeforeThePauseHasGivenTheRestBack(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		dir, write := frozenGroup(t, job)
		host.UseFailpoint("dump.stop=error,dump.back.pause=kill")
		if run := host.TryDump(job, filepath.Join(t.TempDir(), "images"), "--freeze-cgroup", dir, "--manage-cgroups=ignore"); run.Err == nil {
			t.Fatal("dumped without its hook")
		}
		testenv.Eventually(t, testenv.Soon, "the watcher waits for the engine", func() bool {
			sessions := host.Sessions()
			return len(sessions) == 1 && sessions[0].Message != ""
		})
		write("freezer.state", "THAWED") // as the engine would
		job.Runs()
		host.Setenv("CUCRIU_FAILPOINT", "")
		testenv.Eventually(t, testenv.Soon, "recover ends the session of the watcher that is killed", func() bool {
			_, err := host.Cucriu("recover")
			return err == nil && host.LastOutcome() == "running"
		})
		job.Runs()
	})
}

func TestAFrozenTreeWithoutCUDADoesNotRunDuringItsDump(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		counter := filepath.Join(t.TempDir(), "counter")
		pid := host.Spawn(t.TempDir(), "/bin/sh", "-c", `n=0; while :; do n=$((n+1)); echo $n >"$1"; done`, "sh", counter)
		count := func() string {
			data, _ := os.ReadFile(counter)
			return string(data)
		}
		testenv.Eventually(t, testenv.Soon, "the shell counts", func() bool { return count() != "" })
		job := testenv.JobOf(t, pid)
		dir, write := frozenGroup(t, job)
		before := count()
		run := host.TryDump(job, filepath.Join(t.TempDir(), "images"), "--freeze-cgroup", dir, "--manage-cgroups=ignore", "--leave-stopped")
		if run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		if after := count(); after != before {
			t.Errorf("the frozen tree counted from %s to %s", strings.TrimSpace(before), strings.TrimSpace(after))
		}
		write("freezer.state", "THAWED")
	})
}

// TestAFrozenJobIsRefusedUnlessItsGroupIsNamed: criu would fail after a long wait, or never end.
func TestAFrozenJobIsRefusedUnlessItsGroupIsNamed(t *testing.T) {
	for version, hierarchy := range []string{1: "/sys/fs/cgroup/freezer", 2: "/sys/fs/cgroup"} {
		if hierarchy == "" {
			continue
		}
		t.Run("cgroup v"+strconv.Itoa(version), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				testenv.MountCgroups(t, version)
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				name := "cucriu-e2e-" + strconv.FormatInt(time.Now().UnixNano(), 36)
				group := proc.Freezer{Dir: filepath.Join(hierarchy, name), V1: version == 1}
				if err := os.Mkdir(group.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
				thaw := func() { // a frozen process does not die
					if err := group.Thaw(context.Background()); err != nil {
						t.Error(err)
					}
				}
				t.Cleanup(func() {
					thaw()
					job.Kill()
					if err := os.Remove(group.Dir); err != nil {
						t.Error(err)
					}
				})
				if err := os.WriteFile(filepath.Join(group.Dir, "cgroup.procs"), []byte(job.Root()), 0); err != nil {
					t.Fatal(err)
				}
				if err := group.Freeze(t.Context()); err != nil {
					t.Fatal(err)
				}
				remedy := "--freeze-cgroup " + group.Dir
				found := testenv.OnlyError(t, testenv.Check(t, host, "-t", job.Root()), preflight.FindingFrozen)
				if !strings.Contains(found.Remedy, remedy) {
					t.Errorf("check does not say %s: %v", remedy, found)
				}
				images := filepath.Join(t.TempDir(), "images")
				out := testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", job.Root(), "-D", images)
				if !strings.Contains(out, "frozen: ") || !strings.Contains(out, remedy) {
					t.Errorf("dump does not say %s:\n%s", remedy, out)
				}
				words := "refused, nothing was touched: " + preflight.FindingFrozen
				if run := host.TryDump(job, t.TempDir()); run.Err == nil || !strings.Contains(run.Log, words) {
					t.Errorf("criu dump: %v\n%s", run.Err, run.Lines())
				}
				images = host.Dump(job, "--freeze-cgroup", group.Dir, "--manage-cgroups=ignore")
				thaw()
				testenv.Eventually(t, testenv.Soon, "the dumped job has ended", job.Gone)
				host.Restore(images, "--manage-cgroups=ignore")
				job.Runs()
			})
		})
	}
}
