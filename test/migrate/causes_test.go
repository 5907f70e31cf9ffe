package migrate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/journal"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// cause is something at the destination that keeps a job from going on there.
type cause struct {
	name   string
	point  string // when it comes about
	do     func(t *testing.T, w *world)
	undo   func(w *world)
	says   string // the error
	status int
}

var causes = []cause{
	{
		name: "memory for images full", point: "migrate.opened", says: "no space left|room", status: 1,
		do:   func(_ *testing.T, w *world) { w.to.Run("mount", "-o", "remount,size=2m", "/dev/shm") },
		undo: func(w *world) { w.to.Run("mount", "-o", "remount,size=50%", "/dev/shm") },
	},
	{
		name: "GPU memory taken", point: "migrate.sent", says: "free", status: 1,
		do:   func(_ *testing.T, w *world) { w.hog = w.to.Start(1, "--mib", "60") },
		undo: func(w *world) { endWork(w.t, w.hog) },
	},
	{
		name: "the driver fails", point: "migrate.sent", says: "999|CUDA_ERROR_UNKNOWN", status: 1,
		do:   func(_ *testing.T, w *world) { w.to.Faults("restore return 999") },
		undo: func(w *world) { w.to.Faults() },
	},
	{
		name: "pid taken", point: "migrate.sent", says: "pid|process", status: 1,
		do: func(t *testing.T, w *world) {
			// Any thread that somebody starts on the host takes a number, too.
			script := fmt.Sprintf("exec 2>/dev/null; for i in $(seq 100); do echo %d > /proc/sys/kernel/ns_last_pid; sleep 4711 >/dev/null 2>&1 & [ $! = %d ] && break; kill $!; done; echo $!", w.work.PID-1, w.work.PID)
			if out := w.to.Run("sh", "-c", script); strings.TrimSpace(out) != w.work.Root() {
				t.Fatalf("the process has pid %s, want %s", out, w.work.Root())
			}
		},
		undo: func(w *world) { killAny(find(w.to, "sleep", "4711")) },
	},
	{
		name: "criu gone", point: "migrate.sent", says: "criu", status: 1,
		do:   func(t *testing.T, w *world) { w.breakCriu(t) },
		undo: func(w *world) { _ = os.Remove(w.broken()) },
	},
	{
		name: "a directory gone", point: "migrate.sent", says: "work-", status: 1,
		do:   func(_ *testing.T, w *world) { w.to.Run("sh", "-c", "rm -r "+w.work.Dir+" && touch "+w.work.Dir) },
		undo: func(w *world) { w.to.Run("rm", w.work.Dir) },
	},
	{
		name: "the source cannot write down its decision", point: "migrate.ready", says: "read-only", status: 4,
		do: func(_ *testing.T, w *world) {
			w.from.Run("sh", "-c", "mount --bind /run/cucriu /run/cucriu && mount -o remount,bind,ro /run/cucriu")
		},
		undo: func(w *world) { w.from.Run("umount", "-l", "/run/cucriu") },
	},
	{
		name: "the job killed", point: "migrate.sent", says: "has ended|ended", status: 5,
		do: func(_ *testing.T, w *world) {
			w.to.Faults("restore return 999")
			killAny(w.work.All(w.from))
		},
		undo: func(w *world) { w.to.Faults() },
	},
}

// broken is a file that makes the criu of [newWorld] fail.
func (w *world) broken() string { return filepath.Join(w.dir, "broken") }

func (w *world) breakCriu(t *testing.T) { testenv.WriteFile(t, w.broken(), "") }

// TestWhatHindersTheDestinationIsNamed: the job goes on at the source, and the error says why.
func TestWhatHindersTheDestinationIsNamed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		for _, c := range causes {
			t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
				from := w.from
				m := w.begin(t, c.point, "")
				if !m.reached() {
					t.Fatal("the migration ended before")
				}
				c.do(t, w)
				m.goOn()
				status := m.status()
				c.undo(w)
				t.Logf("exit status %d: %s", status, m.out.String())
				if status != c.status {
					t.Errorf("exit status %d, want %d", status, c.status)
				}
				if !regexp.MustCompile(c.says).MatchString(m.out.String()) {
					t.Errorf("the error does not name the cause, %s", c.says)
				}
				if c.status == 5 {
					w.lost(t)
					return
				}
				if at := w.end(t); at != from {
					t.Fatalf("the job is on %v", at)
				}
				w.is(from)
			})
			if t.Failed() {
				return
			}
		}
		w.watch.Stop()
	})
}

func TestAnotherDriverIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{B: hosts.HostOptions{Simulator: []string{"--driver", "570"}}})
		work := p.A.Start(1)
		work.Prepare(p.B)
		m := &migration{t: t, from: p.A, to: p.B, ended: make(chan struct{})}
		m.start(work)
		if status := m.status(); status != 3 || !strings.Contains(m.out.String(), "570") {
			t.Errorf("exit status %d: %s", status, m.out.String())
		}
		work.Is(p.A)
		testenv.Eventually(t, testenv.Soon, "nothing is left", func() bool { return len(left(p.A))+len(left(p.B)) == 0 })
	})
}

// TestAJobDoesNotMigrateToItsOwnHost, and not in several ways at once.
func TestOneOperationHasAJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		first := w.begin(t, "migrate.dumped", "")
		if !first.reached() {
			t.Fatal("the first migration does not begin")
		}
		second := &migration{t: t, from: w.from, to: w.to, ended: make(chan struct{})}
		second.start(w.work)
		dump := w.from.Command(t.Context(), "cucriu", "dump", "-t", w.work.Root(), "-D", "/tmp/images")
		out, err := dump.CombinedOutput()
		t.Logf("a dump meanwhile: %v: %s", err, out)
		if err == nil {
			t.Error("the job was dumped in the middle of its migration")
		}
		if status := second.status(); status != 3 {
			t.Errorf("the second migration: exit status %d: %s", status, second.out.String())
		}
		t.Logf("the second migration said: %s", second.out.String())
		recovery := w.from.Command(t.Context(), "cucriu", "recover")
		out, err = recovery.CombinedOutput()
		if status := recovery.ProcessState.ExitCode(); status != 4 || !strings.Contains(string(out), "is working on it") {
			t.Errorf("cucriu recover, which names who is at work: %v: %s", err, out)
		}
		first.goOn()
		if status := first.status(); status != 0 {
			t.Errorf("the first migration: exit status %d", status)
		}
		w.is(w.end(t))
	})
}

func TestAMigrationWaitsForADumpOrSaysSo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		marks := t.TempDir()
		w.from.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
		w.from.UseFailpoint("dump.copy=run " + testenv.WaitsForGo(t, marks))
		dump := w.from.Command(t.Context(), "cucriu", "dump", "-t", w.work.Root(), "-D", "/tmp/images", "--leave-running")
		if err := dump.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the dump is under way", func() bool { return testenv.Exists(filepath.Join(marks, "reached")) })
		m := &migration{t: t, from: w.from, to: w.to, ended: make(chan struct{})}
		m.start(w.work)
		time.Sleep(2 * time.Second)
		testenv.WriteFile(t, filepath.Join(marks, "go"), "")
		if err := dump.Wait(); err != nil {
			t.Errorf("the dump: %v", err)
		}
		status := m.status()
		t.Logf("exit status %d: %s", status, m.out.String())
		at := w.end(t)
		if status == 0 != (at == w.to) {
			t.Errorf("exit status %d, and the job is on host %s", status, at.Name)
		}
		w.is(at)
	})
}

// TestWhoRecoversMayBeKilledToo: the next cucriu recover goes on with it.
func TestWhoRecoversMayBeKilledToo(t *testing.T) {
	testenv.Parallel(t)
	for cutOff, points := range map[string][]string{
		"receive.promised": {"dump.decided", "dump.back.unpark", "dump.close", "migrate.bring-back", "migrate.told", "receive.heard", "restore.decided", "restore.close", "receive.dropped", "receive.say-ended", "migrate.say-abort", "migrate.close"},
		"dump.decided":     {"dump.close", "migrate.kill-copy", "migrate.told", "receive.heard", "restore.decided", "restore.back.unpark", "restore.close", "receive.go", "receive.say-running", "migrate.say-commit", "migrate.close"},
	} {
		t.Run(cutOff, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				w := newWorld(t, "cuda")
				for _, point := range points {
					if os.Getenv(faultsVariable) == "" && point != "restore.decided" {
						continue
					}
					ok := t.Run(point, func(t *testing.T) {
						want := w.from
						if cutOff == "dump.decided" {
							want = w.to
						}
						w.recoverKilled(t, cutOff, point)
						if at := w.end(t); at != want {
							t.Fatalf("the job is on %v", at)
						}
						w.is(want)
					})
					if !ok {
						return
					}
				}
				w.watch.Stop()
			})
		})
	}
}

// recoverKilled cuts a migration off at a point, and kills who then reaches another one.
func (w *world) recoverKilled(t *testing.T, cutOff, point string) {
	t.Helper()
	m := w.begin(t, cutOff, "")
	if !m.reached() {
		t.Fatal("the migration ended before")
	}
	watching := watchers(w.from)
	killAny(watching)
	kill(t, "migrate", migrates(w.from)...)
	_ = m.status()
	awaitEnd(t, watching...)
	m.goOn()
	for _, h := range w.Hosts() {
		h.UseFailpoint(point + "=kill")
	}
	cmd := w.from.Command(context.Background(), "cucriu", "recover")
	out, err := cmd.CombinedOutput()
	t.Logf("%s, then %s: cucriu recover: %v: %s", cutOff, point, err, out)
	if !testenv.Exists(filepath.Join(m.marks, point)) {
		t.Errorf("nobody has come to %s", point)
	}
}

// TestTheLastCopyIsNotDropped: the source has decided nothing, and its copy is gone.
func TestTheLastCopyIsNotDropped(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		from, to := w.from, w.to
		m := w.begin(t, "receive.promised", "")
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		killed := slices.Concat(watchers(from), w.work.All(from))
		killAny(killed)
		kill(t, "migrate", migrates(from)...)
		_ = m.status()
		awaitEnd(t, killed...)
		m.goOn()
		testenv.Eventually(t, testenv.Soon, "receive has noticed", func() bool { return len(receives(to)) == 0 })
		out, err := from.Command(t.Context(), "cucriu", "recover").CombinedOutput()
		if id := held(t, to); err == nil || id == "" || !strings.Contains(string(out), "--take "+id) {
			t.Fatalf("host b holds %q; cucriu recover: %v: %s", id, err, out)
		}
		out, err = to.Command(t.Context(), "cucriu", "recover", "--take", held(t, to)).CombinedOutput()
		if err != nil {
			t.Fatalf("--take: %v: %s", err, out)
		}
		if at := w.end(t); at != to {
			t.Fatalf("the job is on %v", at)
		}
		w.is(to)
		w.watch.Stop()
	})
}

// TestTheSourceGivesUpWhileItsCopyIsRestored: the destination's program does not notice that the
// source has gone, and hears of it over another connection. Whoever is killed then, no copy is
// left there.
func TestTheSourceGivesUpWhileItsCopyIsRestored(t *testing.T) {
	testenv.Parallel(t)
	points := []string{"restore.post-restore"}
	if os.Getenv(faultsVariable) != "" {
		points = append(points, "receive.promised", "receive.listening", "receive.asked", "restore.pre-restore", "restore.pre-resume", "restore.post-resume", "receive.restored")
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				w := newWorld(t, "cuda")
				w.giveUpLate(t, point, true)
				if os.Getenv(faultsVariable) != "" {
					w.giveUpLate(t, point, false)
				}
				w.watch.Stop()
			})
		})
	}
}

func (w *world) giveUpLate(t *testing.T, point string, killed bool) {
	t.Helper()
	from, to := w.from, w.to
	m := w.begin(t, point, "")
	if !m.reached() {
		t.Fatal("the migration ended before")
	}
	signal(t, unix.SIGSTOP, servers(to)) // what ends there is not heard of
	kill(t, "migrate", migrates(from)...)
	kill(t, "ssh", clients(from)...)
	_ = m.status()
	restoring := crius(to)
	for _, p := range restoring {
		_ = unix.Kill(p.Outer, unix.SIGSTOP) // between its stages, once this one is over
	}
	frozen := servers(to)
	if killed {
		to.UseFailpoint("restore.decided=kill") // whoever hears of it
	}
	recovered := make(chan string)
	go func() {
		out, err := from.Command(context.Background(), "cucriu", "recover").CombinedOutput()
		recovered <- fmt.Sprintf("%v: %s", err, out)
	}()
	time.Sleep(500 * time.Millisecond)
	m.goOn()
	time.Sleep(time.Second)
	for _, p := range restoring {
		_ = unix.Kill(p.Outer, unix.SIGCONT)
	}
	t.Logf("%s, killed %v: cucriu recover: %s", point, killed, <-recovered)
	testenv.Eventually(t, testenv.Soon, "no copy runs on the destination", func() bool {
		return !slices.ContainsFunc(w.work.Copies(), func(p hosts.Process) bool {
			return p.Host == to && p.Held() == "" && len(testenv.NotEnding([]int{p.Outer})) > 0
		})
	})
	for _, p := range frozen {
		_ = unix.Kill(p.Outer, unix.SIGCONT)
	}
	if at := w.end(t); at != from {
		t.Fatalf("the job is on %v", at)
	}
	w.is(from)
}

// TestWhatTheSourceHasGivenUpIsNotPromised: it is heard of over another connection before anything
// of the job is there, and the restore begins after that.
func TestWhatTheSourceHasGivenUpIsNotPromised(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		from, to := w.from, w.to
		m := w.begin(t, "receive.asked", "")
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		receiving, frozen := receives(to), servers(to)
		signal(t, unix.SIGSTOP, frozen) // what ends there is not heard of
		kill(t, "migrate", migrates(from)...)
		kill(t, "ssh", clients(from)...)
		_ = m.status()
		testenv.Eventually(t, testenv.Soon, "the source's watcher has finished", func() bool {
			out, err := from.Try("cucriu", "recover")
			t.Logf("cucriu recover: %v: %s", err, out)
			return err == nil
		})
		m.goOn()
		testenv.Eventually(t, testenv.Soon, "the restore is over", func() bool {
			receives := slices.ContainsFunc(receives(to), func(p hosts.Process) bool {
				return slices.ContainsFunc(receiving, func(q hosts.Process) bool { return q.Outer == p.Outer })
			})
			sessions, err := journal.List(to.RunDir)
			if err == nil && len(sessions) == 0 { // on a busy machine it may take the source for silent before it begins
				return !receives
			}
			if err != nil || len(sessions) != 1 {
				return false
			}
			if s := sessions[0]; s.Hold != nil && s.Hold.IfAbandoned == journal.StayHeld {
				t.Fatal("the copy was promised")
			}
			return sessions[0].Outcome != ""
		})
		signal(t, unix.SIGCONT, frozen)
		if at := w.end(t); at != from {
			t.Fatalf("the job is on %v", at)
		}
		w.is(from)
		w.watch.Stop()
	})
}

// TestAJobStandsStillForNoLongerThanAllowed: the restore takes longer than was predicted.
func TestAJobStandsStillForNoLongerThanAllowed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "1") // so that a moment in which nothing is sent predicts no long pause
		w.Is(p.A)
		w.Prepare(p.B)
		p.B.UseFailpoint("receive.asked=run " + testenv.Script(t, "sleep 24"))
		out, err := p.A.Try("cucriu", "migrate", "-t", w.Root(), "--to", "b", "--copy-files", "changed", "--max-pause", "12s")
		if err == nil || !strings.Contains(out, "paused for 12s") {
			t.Errorf("want it given up after 12 s, got %v: %s", err, out)
		}
		w.Is(p.A)
	})
}

// TestCtrlZWaitsForTheMigration: a command that stopped in the middle would hold the job on both hosts.
func TestCtrlZWaitsForTheMigration(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := &world{t: t, Pair: p, from: p.A, to: p.B}
		w.work = p.A.StartProgram("python3", "-c", remembers)
		w.work.WaitTicks(p.A, 3)
		m := w.begin(t, "migrate.sent", "")
		if !m.reached() {
			t.Fatal("the migration ended")
		}
		command := migrates(p.A)
		if len(command) != 1 {
			t.Fatalf("%d processes migrate", len(command))
		}
		signal(t, unix.SIGTSTP, command)
		m.goOn()
		w.work.WaitTicks(p.B, 3)
		for _, pid := range []int{command[0].Outer, m.cmd.Process.Pid} { // nsenter stops after it
			testenv.Eventually(t, testenv.Soon, "the command stops", func() bool {
				stopped, err := proc.Stopped(pid)
				return err == nil && stopped
			})
		}
		if err := unix.Kill(-m.cmd.Process.Pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if status := m.status(); status != 0 {
			t.Errorf("exit status %d", status)
		}
	})
}
