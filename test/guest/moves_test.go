package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/core/agent"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// movers are jobs whose memory the library moves, with the number of their processes.
var movers = map[string]struct {
	processes int
	args      []string
}{
	"vmm":                         {1, []string{"--memory", "vmm"}},
	"cuMemAlloc":                  {1, []string{"--memory", "alloc"}},
	"both GPUs":                   {1, []string{"--gpus", "0,1", "--peer", "both"}},
	"several allocations":         {1, []string{"--ballast", "48", "--ballast-pieces", "3"}},
	"memory that is 0":            {1, []string{"--zeros", "96"}},
	"waits for a stream":          {1, []string{"--spin", "stream-sync"}},
	"asks for an event":           {1, []string{"--spin", "event-query"}},
	"threads that never pause":    {1, []string{"--threads", "3", "--burn", "1"}},
	"the lock of malloc is taken": {1, []string{"--trim"}},
	"forked workers":              {1, []string{"--loaders", "3"}},
	"pinned memory":               {1, []string{"--pinned"}},
	"two processes":               {2, []string{"--procs", "2"}},
}

// TestTheGuestMovesTheMemory out and back, twice while the job goes on, and then with the job.
func TestTheGuestMovesTheMemory(t *testing.T) {
	testenv.Parallel(t)
	for name, job := range movers {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				size, room := "64", "400"
				if testenv.RealDriver() {
					size = "1024"
				}
				gpus := 1
				if slices.Contains(job.args, "0,1") {
					gpus = 2
				}
				host := testenv.NewHost(t, gpus, "--mib-per-gpu", room)
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				host.Setenv("CUCRIU_LOG", "debug")
				j := host.StartUnder(testenv.WithGuest(t), job.processes, append(job.args, "--mib", size)...)
				j.Runs()
				for range 2 {
					moved(t, host, host.TryDump(j, testenv.NewImages(t), "-R"))
					host.WaitOutcome("running")
					wasKept(t, host)
					j.Runs()
				}
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(j, images))
				host.Restore(images)
				j.Runs()
				j.Check()
			})
		})
	}
}

func moved(t *testing.T, host *testenv.Host, run testenv.CriuRun) {
	t.Helper()
	if run.Err != nil {
		t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
	}
	sessions := host.Sessions()
	for _, m := range sessions[len(sessions)-1].Members {
		if !m.Moved || strings.Contains(run.Log, "the driver moves the memory") {
			t.Errorf("the library did not move the memory of process %d: %s", m.PID, run.Lines())
		}
	}
	// Who waits for a copy must not be taken for somebody who waits for a lock: the program would be stepped.
	if strings.Contains(run.Log, "a lock of a thread that is stopped was waited for") && !strings.Contains(t.Name(), "malloc") {
		t.Errorf("a thread of the program ran: %s", run.Lines())
	}
}

// TestZerosTakeNoMemory of the host. Of much memory the GPUs find them.
func TestZerosTakeNoMemory(t *testing.T) {
	t.Parallel()
	for name, zeros := range map[string]int64{"the host finds them": 48, "the GPUs find them": 160} { // MiB
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				const others = 64
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
				job := startWithGuest(t, host, "--zeros", strconv.FormatInt(zeros, 10))
				before := anonymous(t, job)
				d := dumpUntil(t, host, job, "dump.moved")
				if grown := (anonymous(t, job) - before) >> 20; grown > others+others/2 || grown < others {
					t.Errorf("%d MiB of the GPU, of which %d are zeros, take %d MiB of the host", others+zeros, zeros, grown)
				}
				host.Restore(d.goOn(t))
				job.Runs()
				job.Check()
			})
		})
	}
}

func anonymous(t *testing.T, job *testenv.Job) int64 {
	t.Helper()
	status, err := proc.ReadStatus(job.PID)
	if err != nil {
		t.Fatal(err)
	}
	return int64(status.Anonymous)
}

// waitingDump is a dump that waits at a failpoint.
type waitingDump struct {
	criu          *exec.Cmd
	ended         chan error
	images, marks string
}

func dumpUntil(t *testing.T, host *testenv.Host, job *testenv.Job, failpoint string, args ...string) waitingDump {
	t.Helper()
	d := waitingDump{images: testenv.NewImages(t), marks: t.TempDir(), ended: make(chan error, 1)}
	host.UseFailpoint(failpoint + "=run " + testenv.WaitsForGo(t, d.marks))
	d.criu = host.CriuCommand("dump", d.images, append([]string{"-t", job.Root()}, args...)...)
	if err := d.criu.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { d.ended <- d.criu.Wait() }()
	testenv.Eventually(t, testenv.Soon, "the failpoint is reached, or the dump ends", func() bool {
		return testenv.Exists(filepath.Join(d.marks, "reached")) || len(d.ended) > 0
	})
	if len(d.ended) > 0 {
		log, _ := os.ReadFile(filepath.Join(d.images, "dump.log"))
		t.Fatalf("the dump has ended before: %v\n%s", <-d.ended, testenv.CriuRun{Log: string(log)}.Lines())
	}
	return d
}

// goOn lets the dump come to its end, and returns its image.
func (d waitingDump) goOn(t *testing.T) (images string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.marks, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-d.ended; err != nil {
		t.Fatal(err)
	}
	return d.images
}

// TestALockOutlastsTheDump when the memory is on the host. It needs another thread of the driver's, which is stopped by then, and must end
// before the driver can be asked anything.
func TestALockOutlastsTheDump(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		job := startWithGuest(t, host)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 100s, try: 30s}\ncheckpoint: {timeout: 6s}\n"))
		d := dumpUntil(t, host, job, "dump.moved")
		host.Faults("lock delay 8s times 1")
		if err := os.WriteFile(filepath.Join(d.marks, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-d.ended; err == nil {
			t.Error("the dump has waited for the lock")
		}
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}

// TestRanksMayLeaveItToTheDriver: if one is ahead, they are level only for moments.
func TestRanksMayLeaveItToTheDriver(t *testing.T) {
	testenv.Parallel(t)
	for name, args := range map[string][]string{"level": nil, "one is ahead": {"--ahead"}} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "400")
				job := host.StartUnder(testenv.WithGuest(t), 2, append(args, "--ranks", "2", "--mib", "64")...)
				job.Runs()
				images := host.Dump(job)
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestTheProgramIsNotTakenForTheDriver if it is called as the driver's threads are.
func TestTheProgramIsNotTakenForTheDriver(t *testing.T) {
	testenv.Parallel(t)
	for _, name := range []string{"cuda1", "cuda-EvtHandlr"} {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
				program := filepath.Join(t.TempDir(), name)
				data, err := os.ReadFile(testenv.Artefact(t, "make workload", "build", "workload", "cudawork"))
				if err == nil {
					err = os.WriteFile(program, data, 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
				size := "64"
				if testenv.RealDriver() {
					size = "1024"
				}
				job := host.StartProgram(testenv.Script(t, "LD_PRELOAD="+testenv.Guest(t)+" exec "+program+` "$@"`), 1, "--mib", size)
				job.Runs()
				moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
				host.WaitOutcome("running")
				job.Runs()
				job.Check()
			})
		})
	}
}

// startWithGuest starts a job with memory that the library moves, however busy the machine is.
func startWithGuest(t *testing.T, host *testenv.Host, args ...string) *testenv.Job {
	t.Helper()
	host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
	job := host.StartUnder(testenv.WithGuest(t), 1, append(args, "--mib", "64")...)
	job.Runs()
	return job
}

// TestWhereACallDoesNotEndTheDriverMovesTheMemory, or the job runs on.
func TestWhereACallDoesNotEndTheDriverMovesTheMemory(t *testing.T) {
	testenv.Parallel(t)
	for name, test := range map[string]struct {
		faults []string
		dumped bool
	}{
		"after the gate was closed":   {[]string{"lock return 600 skip 1 times 1"}, true},
		"whenever the process stands": {nil, true},
		"when the memory has moved":   {[]string{"lock return 600 skip 3 times 1"}, false},
		"the driver cannot unlock":    {[]string{"unlock return 999 times 1"}, false},
		"or not once it stands":       {[]string{"unlock return 999 skip 2 times 1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				job := startWithGuest(t, host)
				if host.Faults(test.faults...); test.faults == nil {
					host.UseFailpoint(aCallHasBegun(t, host, "", always))
				}
				images := testenv.NewImages(t)
				run := host.TryDump(job, images)
				if (run.Err == nil) != test.dumped {
					t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
				}
				if !test.dumped {
					host.WaitOutcome("running")
					job.Runs()
					job.Check()
					return
				}
				if !strings.Contains(run.Log, "the driver moves the memory") {
					t.Errorf("nobody says so: %s", run.Lines())
				}
				host.Faults()
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

const always = 1000

// aCallHasBegun returns a failpoint with which a process ("pid N"; "" for the only one) is not locked when it stands,
// the first so many times that it does: before it is stopped, it is locked as often as that takes.
func aCallHasBegun(t *testing.T, host *testenv.Host, of string, times int) string {
	const script = `echo >>%[1]s/hits
[ $(wc -l <%[1]s/hits) -gt %[2]d ] || echo 'lock return 600 %[3]s times 1' >%[4]s/faults`
	return "dump.gated=run " + testenv.Script(t, fmt.Sprintf(script, t.TempDir(), times, of, host.Dir))
}

// TestACallBeganAsTheProcessWasStopped, past the gate: it ends when the process has run once more.
func TestACallBeganAsTheProcessWasStopped(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		job := startWithGuest(t, host)
		host.UseFailpoint(aCallHasBegun(t, host, "", 2))
		images := testenv.NewImages(t)
		moved(t, host, host.TryDump(job, images))
		host.Faults()
		host.Restore(images)
		job.Runs()
		job.Check()
	})
}

// TestAllRunsWhileTheDriverIsToMoveTheMemory: its lock may wait for work that ends only if a process without CUDA runs.
func TestAllRunsWhileTheDriverIsToMoveTheMemory(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		job := startWithGuest(t, host, "--loaders", "1")
		d := dumpUntil(t, host, job, "dump.move")
		tree, err := proc.Tree(job.PID)
		if err != nil || len(tree) < 2 {
			t.Fatal(tree, err)
		}
		allRun := func() bool {
			return !slices.ContainsFunc(tree, func(pid int) bool {
				stopped, err := proc.Stopped(pid)
				return err != nil || stopped
			})
		}
		if allRun() {
			t.Fatal("nothing is stopped, so the test shows nothing")
		}
		host.Faults("lock return 600 times 1", "lock hang skip 1 times 1") // a call has not returned; then the lock waits
		if err := os.WriteFile(filepath.Join(d.marks, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "all of the job runs", allRun)
		host.Faults()
		host.Restore(d.goOn(t))
		job.Runs()
		job.Check()
	})
}

// TestMovedMemoryWaitsForRoom if another process has taken it meanwhile.
func TestMovedMemoryWaitsForRoom(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "100")
		job := startWithGuest(t, host)
		d := dumpUntil(t, host, job, "dump.moved")
		other := host.Start(1, "--mib", "64")
		other.Runs()
		host.KillHook(d.criu.Process.Pid)
		<-d.ended
		testenv.Eventually(t, testenv.Soon, "the session says what it lacks", func() bool {
			sessions := host.Sessions()
			return strings.Contains(sessions[len(sessions)-1].Message, "no room for its memory")
		})
		other.Kill()
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}

// TestNothingRunsWhileTheMemoryIsOnTheHost, even if the job is continued.
func TestNothingRunsWhileTheMemoryIsOnTheHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		job := startWithGuest(t, host, "--burn", "2", "--spin", "event-query")
		d := dumpUntil(t, host, job, "dump.moved")
		job.Signal(unix.SIGCONT)
		helpers := helpersOf(t, host, job)
		tids, err := proc.Threads(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		before := make(map[int]time.Duration)
		for _, tid := range tids {
			before[tid] = cpuTime(t, tid)
		}
		time.Sleep(300 * time.Millisecond) // it is shown that nothing happens
		for _, tid := range tids {
			ran := cpuTime(t, tid) - before[tid]
			if ran > 3*time.Millisecond && !slices.Contains(helpers, tid) { // one that the signal has woken goes back to its wait
				t.Errorf("thread %d of the program ran for %v", tid, ran)
			}
		}
		host.Restore(d.goOn(t))
		job.Runs()
		job.Check()
	})
}

// cpuTime returns how long a thread has run.
func cpuTime(t *testing.T, tid int) (ran time.Duration) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", tid))
	if err == nil {
		_, err = fmt.Sscan(string(text), (*int64)(&ran))
	}
	if err != nil {
		t.Fatal(err)
	}
	return ran
}

// agentOf returns the library in a job.
func agentOf(t *testing.T, job *testenv.Job) *agent.Agent {
	t.Helper()
	process, err := proc.Open(job.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Close() })
	a, err := agent.Find(process)
	if err != nil || a == nil {
		t.Fatalf("the library is not found: %v", err)
	}
	return a
}

// copies reports whether a library is at work.
func copies(t *testing.T, a *agent.Agent) bool {
	t.Helper()
	status, err := a.Status()
	if err != nil {
		t.Fatal(err)
	}
	return status.Busy
}

// helpersOf returns the threads of a job that may run while its memory is out.
func helpersOf(t *testing.T, host *testenv.Host, job *testenv.Job) []int {
	t.Helper()
	tids, err := agentOf(t, job).Helpers()
	if err != nil {
		t.Fatal(err)
	}
	tid, err := host.Driver().Process(job.PID).RestoreThreadID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return append(tids, tid)
}

// TestTheHookIsKilledWhileTheLibraryCopies out, and the watcher while it copies back. The library goes on by itself meanwhile, and
// waits then.
func TestTheHookIsKilledWhileTheLibraryCopies(t *testing.T) {
	testenv.Parallel(t)
	for _, way := range []string{"out", "in"} {
		t.Run(way, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
				job := host.StartUnder(testenv.WithGuest(t), 1, "--mib", "160", "--spin", "event-query")
				library := agentOf(t, job)
				for range 10 {
					job.Runs()
					criu := host.CriuCommand("dump", testenv.NewImages(t), "-t", job.Root(), "-R")
					if err := criu.Start(); err != nil {
						t.Fatal(err)
					}
					if way == "in" {
						if err := criu.Wait(); err != nil {
							t.Fatal(err)
						}
					}
					testenv.Eventually(t, testenv.Soon, "the library copies", func() bool {
						sessions := host.Sessions()
						if len(sessions) == 0 || sessions[len(sessions)-1].Outcome != "" {
							return way == "in" // too late
						}
						return sessions[len(sessions)-1].Members[0].Moved && copies(t, library)
					})
					if way == "out" {
						host.KillHook(criu.Process.Pid)
					} else if len(host.Watchers()) > 0 {
						host.KillWatcher()
					}
					copied := copies(t, library)
					if way == "out" {
						_ = criu.Wait()
					} else if out, err := host.Cucriu("recover"); err != nil {
						t.Fatalf("cucriu recover: %v\n%s", err, out)
					}
					host.WaitOutcome("running")
					job.Runs()
					job.Check()
					if copied {
						return
					}
				}
				t.Error("it was never at work when the other was killed, so the test shows nothing")
			})
		})
	}
}

func TestAJobWithMovedMemoryIsLeftStopped(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		job := startWithGuest(t, host)
		images := testenv.DumpAndLeave(t, host, job, "-s")
		if !job.Stopped() {
			t.Fatal("cucriu dump -s left the job running")
		}
		job.Signal(unix.SIGCONT)
		job.Runs()
		job.Kill()
		testenv.Exits(t, host, 0, "restore", "-D", images, "-s")
		if !job.Stopped() {
			t.Fatal("cucriu restore -s left the job running")
		}
		job.Signal(unix.SIGCONT)
		job.Runs()
		job.Check()
	})
}

// TestMovedMemoryIsSuspended, and what was killed meanwhile is brought back by a resume.
func TestMovedMemoryIsSuspended(t *testing.T) {
	testenv.Parallel(t)
	for _, point := range []string{
		"", "suspend.gated=kill", "suspend.move=kill", "suspend.continued=kill", "suspend.relocked=kill",
		"suspend.moved=kill", "suspend.park=kill", "suspend.release=error",
	} {
		t.Run(point, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				job := startWithGuest(t, host, "--spin", "stream-sync")
				if point == "suspend.continued=kill" || point == "suspend.relocked=kill" {
					host.Faults("lock return 600 skip 2 times 1") // when it stands
				}
				if point != "" {
					if out, err := testenv.Failing(t, host, point, "suspend", "-p", job.Root()); err == nil {
						t.Fatalf("the suspend did not fail:\n%s", out)
					}
					host.WaitOutcome("running")
				} else {
					testenv.Exits(t, host, 0, "suspend", "-p", job.Root())
					testenv.Exits(t, host, 0, "resume", "-p", job.Root())
				}
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestTheWatcherIsKilledWhenTheDriverHasRestored, and what the library had moved is not filled in yet: only what is missing is, then.
func TestTheWatcherIsKilledWhenTheDriverHasRestored(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		job := startWithGuest(t, host)
		marks := t.TempDir()
		host.UseFailpoint("dump.dumping=kill-criu+kill,dump.filling-moved=run " + testenv.WaitsForGo(t, marks))
		if run := host.TryDump(job, testenv.NewImages(t)); run.Err == nil {
			t.Fatal("the dump has not failed")
		}
		testenv.Eventually(t, testenv.Soon, "the failpoint is reached", func() bool { return testenv.Exists(filepath.Join(marks, "reached")) })
		driver := host.Driver().Process(job.PID)
		testenv.Eventually(t, testenv.Soon, "the driver has restored", func() bool {
			state, err := driver.State(t.Context())
			return err == nil && state == cudackpt.StateLocked
		})
		host.KillWatcher()
		host.UseFailpoint("")
		if err := os.WriteFile(filepath.Join(marks, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := host.Cucriu("recover"); err != nil {
			t.Fatalf("cucriu recover: %v\n%s", err, out)
		}
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}

// TestAStoppedJobHasTheLibrary: nothing is asked of that, and it is stopped as before.
func TestAStoppedJobHasTheLibrary(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
		job := startWithGuest(t, host)
		stop := func() {
			pid := job.MustStatus(0).PID
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, testenv.Soon, "the job is stopped", func() bool { // before the dump begins
				stopped, err := proc.Stopped(pid)
				return err == nil && stopped
			})
		}
		goesOn := func() {
			if err := unix.Kill(job.MustStatus(0).PID, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			job.Runs()
			job.Check()
		}
		stop()
		if run := host.TryDump(job, testenv.NewImages(t), "-R"); run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		host.WaitOutcome("running")
		goesOn()
		stop()
		images := testenv.NewImages(t)
		if run := host.TryDump(job, images); run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		host.Restore(images)
		goesOn()
	})
}
