package guest

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/core/agent"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// theGPUs is what ranks are told to use: two GPUs, or a real machine's only one.
var theGPUs = "0,1"[:2*testenv.GPUsUpTo(2)-1]

// sharers are jobs whose processes have memory of each other.
var sharers = map[string][]string{
	"cuIpc":                {"--ipc", "--mib", "32"},
	"handles":              {"--ipc-vmm", "--mib", "32"},
	"handles, much memory": {"--ipc-vmm", "--mib", "64", "--memory", "vmm"},
	"a mesh of three":      {"--ranks", "3", "--mesh", "2", "--gpus", theGPUs},
	"one is ahead":         {"--ranks", "2", "--mesh", "2", "--ahead", "--lead", "60", "--gpus", theGPUs},
	"its queue is full":    {"--ranks", "2", "--mesh", "2", "--ahead", "--lead", "800", "--tick-ms", "3", "--gpus", theGPUs},
}

// startSharing starts a job whose processes share memory, with the library.
func startSharing(t *testing.T, host *testenv.Host, args ...string) *testenv.Job {
	t.Helper()
	host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
	processes := 2
	if i := slices.Index(args, "--ranks"); i >= 0 {
		processes, _ = strconv.Atoi(args[i+1])
	}
	job := host.StartUnder(testenv.WithGuest(t), processes, args...)
	job.Runs()
	return job
}

// TestWhatProcessesShareComesBack: it is taken down before the driver checkpoints, and put up again when all have their own.
func TestWhatProcessesShareComesBack(t *testing.T) {
	testenv.Parallel(t)
	for name, args := range sharers {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				gpus := testenv.GPUsUpTo(2)
				if slices.Contains(args, "--ahead") { // they wait for one another in kernels, and a restored one is not interrupted
					gpus = 2
				}
				host := testenv.NewHost(t, gpus, "--mib-per-gpu", "800")
				job := startSharing(t, host, args...)
				if slices.Contains(args, "--ahead") { // by more than a try
					host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 100s}\n"))
				}
				goesOn := func() {
					moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
					host.WaitOutcome("running")
					job.Runs()
					job.Check()
				}
				goesOn()
				goesOn()
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
				goesOn()
			})
		})
	}
}

// TestOthersAreFarAhead of a rank that is never idle: before anybody sees that they are level, that one has begun its next step.
func TestOthersAreFarAhead(t *testing.T) {
	testenv.Parallel(t)
	for _, ranks := range []string{"2", "3"} {
		t.Run(ranks+" ranks", func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2)
				job := startSharing(t, host, "--ranks", ranks, "--ahead", "--mib", "16", "--lead", "30", "--busy-ms", "20", "--tick-ms", "1", "--gpus", theGPUs)
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 100s}\n"))
				late := "caught-up=run " + testenv.Script(t, "sleep 0.3")
				if ranks == "2" {
					for _, fault := range []string{"kill", "kill-watcher+kill", "error"} {
						failsAtASingleCall(t, host, job, late, fault)
					}
				}
				host.UseFailpoint(late)
				moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
				host.WaitOutcome("running")
				job.Runs()
				job.Check()
			})
		})
	}
}

// failsAtASingleCall dumps a job until single calls have to be let through, and then something happens to who lets them.
func failsAtASingleCall(t *testing.T, host *testenv.Host, job *testenv.Job, late, fault string) {
	t.Helper()
	defer host.Setenv("CUCRIU_FAILPOINT_MARKS", "")
	for hasHappened := false; !hasHappened; {
		marks := t.TempDir()
		host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
		host.UseFailpoint(late + ",told-pass=" + fault)
		run := host.TryDump(job, testenv.NewImages(t), "-R")
		hasHappened = testenv.Exists(filepath.Join(marks, "told-pass"))
		if (run.Err != nil) != hasHappened {
			t.Fatalf("%s: criu dump: %v\n%s", fault, run.Err, run.Lines())
		}
		host.WaitOutcome("running")
		job.Runs()
	}
}

// TestSharedMemoryIsSuspended with all processes that have it, or not at all.
func TestSharedMemoryIsSuspended(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "400")
		job := startSharing(t, host, "--ranks", "3", "--mesh", "2", "--gpus", theGPUs)
		var all []string
		for i := range 3 {
			all = append(all, "-p", strconv.Itoa(job.MustStatus(i).PID))
		}
		if out := testenv.Exits(t, host, testenv.StatusRefused, append([]string{"suspend"}, all[:4]...)...); !strings.Contains(out, "shared-gpu-memory") {
			t.Errorf("cucriu suspend of two of three: %s", out)
		}
		job.Runs()
		if found := testenv.Check(t, host, "-t", job.Root()).Of(preflight.SeverityOK); !slices.ContainsFunc(found, func(f preflight.Finding) bool {
			return f.Name == preflight.FindingSharing && strings.Contains(f.Message, "it is taken down")
		}) {
			t.Errorf("cucriu check: %v", found)
		}
		testenv.Exits(t, host, 0, append([]string{"suspend"}, all...)...)
		testenv.Exits(t, host, 0, append([]string{"resume"}, all...)...)
		job.Runs()
		job.Check()
	})
}

// TestAnImageOfSharersIsRestoredTwice: whose memory it is, the processes know by the same names each time.
func TestAnImageOfSharersIsRestoredTwice(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "400")
		job := startSharing(t, host, "--ranks", "2", "--mesh", "2", "--gpus", theGPUs)
		images := testenv.NewImages(t)
		moved(t, host, host.TryDump(job, images))
		for range 2 {
			host.Restore(images)
			job.Runs()
			job.Check()
			job.Kill()
		}
	})
}

// TestAProcessThatSharesNothingIsBesideSharers: it has the library, and no memory that the library serves.
func TestAProcessThatSharesNothingIsBesideSharers(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "800")
		host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
		beside := t.TempDir()
		both := []string{"sh", "-c", `"$1" --dir ` + beside + ` --mib 1 & "$@" & wait`, "sh"}
		job := host.StartUnder(append(testenv.WithGuest(t), both...), 2, sharers["cuIpc"]...)
		job.Runs()
		testenv.Eventually(t, testenv.Soon, "the other program runs", func() bool { return testenv.Exists(filepath.Join(beside, "status")) })
		if run := host.TryDump(job, testenv.NewImages(t), "-R"); run.Err != nil {
			t.Fatal(run.Lines())
		}
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
		images := host.Dump(job)
		for range 2 {
			host.Restore(images)
			job.Runs()
			job.Check()
			job.Kill()
		}
	})
}

// TestManyPiecesAreShared: more than messages fit into a socket.
func TestManyPiecesAreShared(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "1200")
		job := startSharing(t, host, "--ranks", "2", "--mesh", "400", "--gpus", theGPUs)
		moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
		host.WaitOutcome("running")
		job.Runs()
	})
}

// TestASharerIsOutsideOfTheJob: what it has could not be taken down.
func TestASharerIsOutsideOfTheJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "400")
		job := startSharing(t, host, sharers["cuIpc"]...)
		owner := job.MustStatus(0).PID
		out := testenv.Exits(t, host, testenv.StatusRefused, "dump", "-t", strconv.Itoa(owner), "-D", testenv.NewImages(t))
		if !strings.Contains(out, "shared-gpu-memory") || !strings.Contains(out, "outside the dumped tree") {
			t.Errorf("cucriu dump: %s", out)
		}
		job.Runs()
		job.Check()
	})
}

// TestMemoryIsSharedByTheDriverAlone, because it is small: that is known before anything is touched.
func TestMemoryIsSharedByTheDriverAlone(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "400")
		job := startSharing(t, host, "--ipc", "--mib", "4", "--ballast", "64")
		testenv.Refused(t, host, job, "shared-gpu-memory", testenv.NewImages(t))
		job.Runs()
		job.Check()
	})
}

// TestTheLibraryOfOneCannotMoveItsMemory: then nothing that is shared may be moved, or the two would have different memory.
func TestTheLibraryOfOneCannotMoveItsMemory(t *testing.T) {
	testenv.Parallel(t)
	for i, who := range []string{"the owner's", "the other's"} {
		t.Run(who, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "400")
				job := startSharing(t, host, sharers["handles"]...)
				of := fmt.Sprintf("pid %d", job.MustStatus(i).PID)
				host.UseFailpoint(aCallHasBegun(t, host, of, always))
				goesOnUndumped(t, host, job, "a call to the driver did not return")
				host.UseFailpoint(aCallHasBegun(t, host, of, 1))
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestOneOfTheSharersIsKilled: what another one has of its memory is lost, so that one is ended, and nobody waits.
func TestOneOfTheSharersIsKilled(t *testing.T) {
	testenv.Parallel(t)
	for who, points := range []map[string]string{ // the outcome, where it does not depend on who ends first
		{"dump.moved": "gone", "dump.back.move": "gone", "dump.back.share": ""}, // the owner
		{"dump.down": "", "dump.back.move": "", "dump.back.share": ""},          // the other one
	} {
		for point, outcome := range points {
			t.Run(fmt.Sprintf("%d %s", who, point), func(t *testing.T) {
				testenv.Isolated(t, func(t *testing.T) {
					host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "400")
					job := startSharing(t, host, sharers["handles"]...)
					host.UseFailpoint(fmt.Sprintf("%s=kill %d", point, job.MustStatus(who).PID))
					_ = host.TryDump(job, testenv.NewImages(t), "-R")
					testenv.Eventually(t, testenv.Soon, "the job has ended, and the session", func() bool { return !job.Alive() && host.LastOutcome() != "" })
					if got := host.LastOutcome(); outcome != "" && got != outcome {
						t.Errorf("outcome %q, want %q", got, outcome)
					}
				})
			})
		}
	}
}

// TestSomebodyIsKilledWhileMemoryIsShared again, or before.
func TestSomebodyIsKilledWhileMemoryIsShared(t *testing.T) {
	testenv.Parallel(t)
	for point, recovers := range map[string]bool{
		"told-list=kill":                      false,
		"told-out-kept=kill":                  false,
		"dump.down=kill":                      false,
		"told-down=kill":                      false,
		"dump.moved=kill":                     false,
		"dump.checkpoint=kill":                false,
		"dump.back.share=error":               false,
		"dump.back.share=kill":                true,
		"dump.back.move=kill":                 true,
		"told-give=kill":                      true,
		"told-take=kill":                      true,
		"dump.dumping=kill-watcher+kill":      true,
		"dump.dumping=kill-watcher+kill-criu": true,
	} {
		t.Run(point, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "400")
				job := startSharing(t, host, sharers["handles"]...)
				survives(t, host, job, point, recovers)
				moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
				host.WaitOutcome("running")
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestSomebodyIsKilledInTheMiddleOfAMemory: of which a message of descriptors has come, and another one is missing.
func TestSomebodyIsKilledInTheMiddleOfAMemory(t *testing.T) {
	testenv.Parallel(t)
	for _, point := range []string{"told-give=kill", "told-take=kill", "dump.back.share=kill"} {
		t.Run(point, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, testenv.GPUsUpTo(2), "--mib-per-gpu", "800")
				job := startSharing(t, host, "--ipc", "--mib", "320") // parts of 4 MiB
				survives(t, host, job, point, true)
			})
		})
	}
}

// TestFewDescriptors: a process that cannot have those that come back in one message is refused, before anything is taken down.
func TestFewDescriptors(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
		fill := `for ((i = 10; i < 200; i++)); do eval "exec $i</dev/null"; done; exec "$@"`
		host.Setenv("CUCRIU_CONFIG", host.Config(testenv.Patient))
		job := host.StartUnder(append([]string{"/bin/bash", "-c", fill, "bash"}, testenv.WithGuest(t)...), 2, "--ipc", "--mib", "64")
		job.Runs()
		importer := job.MustStatus(1).PID
		open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", importer))
		if err != nil {
			t.Fatal(err)
		}
		few := uint64(len(open) + 10) // nearly all numbers below are taken
		if err := unix.Prlimit(importer, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: few}, nil); err != nil {
			t.Fatal(err)
		}
		goesOnUndumped(t, host, job, "shares device memory")
	})
}

// TestMemoryIsOnItsWay to a process that has a descriptor of it and has not opened it, so nobody could tell whose it is.
func TestMemoryIsOnItsWay(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
		job := startSharing(t, host, "--ipc", "--mib", "32")
		sockets := func() (names []string) { // other jobs have some, too
			table, err := os.ReadFile("/proc/net/unix")
			if err != nil {
				t.Fatal(err)
			}
			open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", job.MustStatus(0).PID))
			for _, fd := range open {
				target, _ := os.Readlink(fd)
				inode := strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")
				if line := regexp.MustCompile(`(?m) ` + regexp.QuoteMeta(inode) + ` (@cucriu-guest-\w+)$`).FindStringSubmatch(string(table)); line != nil {
					names = append(names, line[1])
				}
			}
			return names
		}
		opener, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: sockets()[0]})
		if err != nil {
			t.Fatal(err)
		}
		request := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 0) // the first memory that it gave, part 0
		answer, descriptor := make([]byte, 16), make([]byte, 64)
		if _, err := opener.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, n, _, _, err := opener.ReadMsgUnix(answer, descriptor); err != nil || n == 0 {
			t.Fatalf("no descriptor came: %v, answer %v", err, answer)
		}
		goesOnUndumped(t, host, job, "on its way to another process")
		opener.Close()
		testenv.Eventually(t, testenv.Soon, "the owner has hung up", func() bool { return len(sockets()) == 1 })
		moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}

// TestTheOwnerHasUnmappedWhatItShares: its library maps it for the dump. Once it has given it back, nobody could put it up
// again, which the dump says.
func TestTheOwnerHasUnmappedWhatItShares(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "800")
		job := startSharing(t, host, "--ipc-vmm", "--mib", "32")
		asks := func(name string) {
			command := testenv.CommandLine(job.MustStatus(0).PID)
			file := filepath.Join(command[slices.Index(command, "--dir")+1], name)
			testenv.WriteFile(t, file, "")
			testenv.Eventually(t, testenv.Soon, name+" is done", func() bool { return !testenv.Exists(file) })
		}
		asks("unmap")
		for range 2 {
			moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
			host.WaitOutcome("running")
			job.Runs()
			job.Check()
		}
		images := testenv.NewImages(t)
		moved(t, host, host.TryDump(job, images))
		host.Restore(images)
		job.Runs()
		job.Check()
		job.Kill()

		job = startSharing(t, host, "--ipc-vmm", "--mib", "32")
		asks("unmap")
		asks("release")
		run := host.TryDump(job, testenv.NewImages(t), "-R")
		host.WaitOutcome("running")
		if want := "has GPU memory of another process that has given it back"; run.Err == nil || !strings.Contains(run.Log, want) {
			t.Errorf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		job.WaitTicks(3) // the simulated driver loses the content with its owner
	})
}

// goesOnUndumped: a dump fails for a reason, and the job goes on.
func goesOnUndumped(t *testing.T, host *testenv.Host, job *testenv.Job, says string) {
	t.Helper()
	run := host.TryDump(job, testenv.NewImages(t), "-R")
	host.WaitOutcome("running")
	if run.Err == nil || !strings.Contains(run.Log, says) {
		t.Errorf("criu dump: %v\n%s", run.Err, run.Lines())
	}
	job.Runs()
	job.Check()
}

// TestAStoppedRankIsNamed: its library is asked nothing while it is stopped, and the refusal says so.
func TestAStoppedRankIsNamed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
		job := startSharing(t, host, "--ipc", "--mib", "32")
		pid := job.MustStatus(1).PID
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the rank is stopped", func() bool {
			stopped, err := proc.Stopped(pid)
			return err == nil && stopped
		})
		run, want := host.TryDump(job, testenv.NewImages(t), "-R"), fmt.Sprintf("is stopped, so its library cannot take down what they share: continue it: kill -CONT %d", pid)
		if run.Err == nil || !strings.Contains(run.Log, want) {
			t.Errorf("criu dump: %v, not %q\n%s", run.Err, want, run.Lines())
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}

// TestWhatAProgramHasWrittenIntoTheLibraryIsNotBelieved: the library is left out, and the job is dumped and runs on.
func TestWhatAProgramHasWrittenIntoTheLibraryIsNotBelieved(t *testing.T) {
	const stateOffset = 24 // in struct mailbox
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
		job := startWithGuest(t, host)
		overwrite(t, job.PID, stateOffset, uint32(agent.Emptied))
		run := host.TryDump(job, testenv.NewImages(t), "-R")
		if run.Err != nil || !strings.Contains(run.Log, "has overwritten the state of its library") {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		host.WaitOutcome("running")
		job.Runs()
		overwrite(t, job.PID, stateOffset, uint32(agent.Idle))
		moved(t, host, host.TryDump(job, testenv.NewImages(t), "-R"))
		host.WaitOutcome("running")
		job.Runs()
		job.Check()
	})
}

// overwrite writes a number into the mailbox of the library of a process.
func overwrite(t *testing.T, pid int, offset uint64, value uint32) {
	t.Helper()
	object, err := elf.Open(testenv.Guest(t))
	if err != nil {
		t.Fatal(err)
	}
	defer object.Close()
	symbols, err := object.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	mailbox := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "cucriu_guest" })
	process, err := proc.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	mappings, err := proc.Mappings(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mappings {
		if strings.HasPrefix(m.Pathname, testenv.Guest(t)) && m.Offset == 0 { // it may have been built anew
			at := uint64(m.StartAddr) + symbols[mailbox].Value + offset
			if err := process.WriteMemory(binary.LittleEndian.AppendUint32(nil, value), at); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("process %d does not map %s", pid, testenv.Guest(t))
}
