package run

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// TestAJobGoesOnAfterAReboot: the boot id is another one, the run directory is empty, and other
// processes have the pids.
func TestAJobGoesOnAfterAReboot(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		r := w.run()
		r.verified(1)
		r.killsAll()
		if err := os.RemoveAll(w.host.RunDir); err != nil {
			t.Fatal(err)
		}
		edit(t, w.placeFiles()[0], func(p map[string]any) {
			p["boot_id"] = "00000000-0000-0000-0000-000000000000"
			p["init"].(map[string]any)["pid"] = os.Getpid()
		})
		edit(t, filepath.Join(w.dir, "owner.json"), func(o map[string]any) { o["boot_id"] = "00000000-0000-0000-0000-000000000000" })
		w.finish(w.goesOn(w.newest()))
		inOrder(t, w)
	})
}

// TestAPIDThatSomebodyElseHasNowIsNoPlace.
func TestAPIDThatSomebodyElseHasNowIsNoPlace(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.killsAll()
		edit(t, w.placeFiles()[0], func(p map[string]any) { p["init"].(map[string]any)["pid"] = os.Getpid() })
		w.finish(w.goesOn(w.newest()))
	})
}

// TestAJobThatRunsInAnotherContainerIsNotStartedTwice, and goes on here once it is gone there.
func TestAJobThatRunsInAnotherContainerIsNotStartedTwice(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		r.kill()
		ticks := w.report().Tick
		self, args := w.host.CucriuCommand().Path, append([]string{"run", "--dir", w.dir, "--every", "0", "--"}, w.command...)
		contained := func() *run {
			cmd := w.host.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", self}, args...)...)
			return w.start(cmd, nil)
		}
		contained().ends(125, "may still run on this host")
		w.ticks(3)
		if now := w.report().Tick; now < ticks {
			t.Errorf("the job was at tick %d, and is at %d", ticks, now)
		}
		w.kills(allKilled)
		w.noProcesses()
		r = contained()
		r.resumed(w.newest())
		w.stop(0)
		r.ends(0)
		w.noProcesses()
	})
}

// TestWhoeverLosesTheJobToAnotherHostEndsIt, and a copy that runs on without a supervisor is not
// taken for the job.
func TestWhoeverLosesTheJobToAnotherHostEndsIt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run()
		r.verified(1)
		owner := filepath.Join(w.dir, "owner.json")
		good, err := os.ReadFile(owner)
		if err != nil {
			t.Fatal(err)
		}
		// A record that cannot be read is no reason to end a job.
		testenv.WriteFile(t, owner, "")
		r.says("cannot tell who owns it")
		w.ticks(10)
		testenv.WriteFile(t, owner, string(good))
		r.verified(1)
		takeOver := func(released bool) {
			edit(t, owner, func(o map[string]any) {
				o["boot_id"], o["host"], o["machine"], o["token"], o["released"] = "00000000-0000-0000-0000-000000000000", "elsewhere", "", "other", released
				o["generation"] = o["generation"].(float64) + 1
			})
		}
		takeOver(false)
		r.ends(125, "taken over by")
		w.noProcesses()
		w.run().ends(125, "--takeover")
		r = w.run("--takeover")
		r.resumed(w.newest())
		r.kill()
		takeOver(true)
		r = w.run()
		r.says("the older copy running here is being ended")
		r.resumed(w.newest())
		w.onlyOnce(t)
		w.finish(r)
	})
}

// TestTheLastImageOfAPreemptedJobIsSaved although the supervisor was killed.
func TestTheLastImageOfAPreemptedJobIsSaved(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"jobs.dumped", "jobs.staged", "store.record", "store.renamed"} {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWorld(t)
				w.flags = []string{"--every", "0"}
				s := w.stopAt(step)
				r := w.runAs(s.host)
				w.ticks(5)
				r.signal(unix.SIGTERM)
				s.await(r)
				r.kill()
				s.goOn()
				r = w.run()
				r.resumed("")
				if saved := strings.Contains(r.said(), "was made from the image that an earlier supervisor had staged"); saved == (step == "store.renamed") {
					t.Errorf("saved: %v", saved)
				}
				w.finish(r)
				if again := inOrder(t, w); again != 0 {
					t.Errorf("%d ticks were done twice", again)
				}
			})
		})
	}
}

// TestAClockThatIsADayAheadIsNotSeenByTheJob: its timers go on evenly.
func TestAClockThatIsADayAheadIsNotSeenByTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		w.flags = []string{"--every", "0"}
		r := w.run()
		w.ticks(20)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		before := w.report()
		args := append([]string{"--time", "--fork", "--kill-child", "--monotonic", "86400", "--boottime", "86400", w.host.CucriuCommand().Path, "run", "--dir", w.dir, "--every", "0", "--"}, w.command...)
		r = w.start(w.host.Command("unshare", args...), nil)
		r.resumed("000001")
		w.ticks(30)
		r.awaits("its timers go on", func() bool { now := w.report(); return now.Timer > before.Timer && now.Alarm > before.Alarm })
		const hour = int64(time.Hour / time.Millisecond) // much less than a day, and more than a busy machine takes
		after := w.report()
		if after.GapMS > hour || after.UpMS-before.UpMS > hour {
			t.Errorf("the job saw the clocks jump: %+v, and then %+v", before, after)
		}
		// criu gives timers the time that was left at the dump: they do not make up for the gap.
		if expired := int64(after.Timer) * timerEvery.Milliseconds(); expired > after.UpMS+hour {
			t.Errorf("the timer expired %d times in %d ms", after.Timer, after.UpMS)
		}
		w.finish(r)
	})
}

// TestACheckpointThatFailsIsTriedAgain, and the job runs on.
func TestACheckpointThatFailsIsTriedAgain(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		socket := filepath.Join(w.work, "socket")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		w.host.Setenv(connectVariable, socket)
		r := w.run()
		r.says("no checkpoint: ")
		w.ticks(5)
		testenv.WriteFile(t, filepath.Join(w.work, "close"), "")
		r.verified(1)
		if e, found := w.last(jobs.EventFailed); !found || e.Message == "" {
			t.Error("the log does not have the reason")
		}
		w.finish(r)
	})
}

// TestAFullDiskHarmsNeitherTheJobNorItsCheckpoints.
func TestAFullDiskHarmsNeitherTheJobNorItsCheckpoints(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		testenv.SmallDisk(t, w.dir, "48m")
		w.mounts = mounts(t)
		r := w.run()
		r.verified(2) // of which the older can be removed
		ballast := filepath.Join(w.dir, "ballast")
		if out, err := exec.Command("dd", "if=/dev/zero", "of="+ballast, "bs=64k").CombinedOutput(); err == nil {
			t.Fatalf("the disk is not full: %s", out)
		}
		r.says("free for a checkpoint") // said before the job is paused
		r.says("cucriu jobs prune ")
		w.ticks(5)
		// What there is still restores, on the full disk.
		r.killsAll()
		r = w.goesOn(w.newest())
		w.ticks(3)
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		r.verified(1)
		w.finish(r)
	})
}

// TestAJobThatRunsIsOnRecordAsRunning although its disk was full, or failed for a moment, when its restore
// was over: else the next supervisor takes it for half restored, and ends it.
func TestAJobThatRunsIsOnRecordAsRunning(t *testing.T) {
	testenv.Parallel(t)
	for name, fail := range map[string]func(w *world) (mend func(r *run)){
		"the disk is full": func(w *world) func(*run) {
			out, err := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(w.dir, "ballast"), "bs=1k").CombinedOutput()
			if err == nil {
				w.t.Fatalf("the disk is not full: %s", out)
			}
			return func(*run) {} // it stays so
		},
		"the folder is missing": func(w *world) func(*run) {
			file := w.placeFiles()[0]
			folder := filepath.Dir(file)
			rename(w.t, folder, folder+".away")
			return func(r *run) {
				r.says("the sandbox's record could not be written")
				rename(w.t, folder+".away", folder)
				r.awaits("that is on record", func() bool {
					data, _ := os.ReadFile(file)
					return strings.Contains(string(data), `"running": true`)
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWorld(t)
				testenv.SmallDisk(t, w.dir, "48m")
				w.mounts = mounts(t)
				w = killed(w)
				s := w.stopAt("jobs.restored")
				r := w.runAs(s.host)
				s.await(r)
				mend := fail(w)
				s.goOn()
				r.resumed(w.newest())
				mend(r)
				w.ticks(3)
				r.kill()
				r = w.run()
				r.awaits("the job is here", func() bool {
					return strings.Contains(r.said(), "it is supervised again") || strings.Contains(r.said(), "resumes from checkpoint")
				})
				if !strings.Contains(r.said(), "it is supervised again") {
					t.Error("the job that ran was ended")
				}
				_ = os.Remove(filepath.Join(w.dir, "ballast"))
				w.finish(r)
				inOrder(t, w)
			})
		})
	}
}

// edit changes a JSON file.
func edit(t *testing.T, path string, change func(map[string]any)) {
	t.Helper()
	value := make(map[string]any)
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	change(value)
	if data, err = json.Marshal(value); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, path+".new", string(data))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
