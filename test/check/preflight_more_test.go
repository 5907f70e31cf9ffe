package check

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestATracedThreadThatIsNotTheLeaderIsFoundBeforehand(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--threads", "2")
		tids, err := proc.Threads(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		last := tids[len(tids)-1]
		tracer := inject.NewTracer()
		t.Cleanup(func() { _ = tracer.Release(context.Background()) })
		if err := tracer.Run(last); err != nil {
			t.Fatal(err)
		}
		found := testenv.Refused(t, host, job, preflight.FindingTraced, t.TempDir())
		if !strings.Contains(found.Message, strconv.Itoa(last)) {
			t.Errorf("thread %d is not named: %v", last, found)
		}
		says := "traced: process " + job.Root()
		if out, err := host.Cucriu("suspend", "-p", job.Root()); err == nil || !strings.Contains(out, says) || !strings.Contains(out, "detach it first") {
			t.Errorf("suspend: %v, want %q in\n%s", err, says, out)
		}
	})
}

func TestCriuInsideTheTreeIsFoundBeforehand(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := t.TempDir()
		images, begin, status := filepath.Join(dir, "images"), filepath.Join(dir, "begin"), filepath.Join(dir, "status")
		criu := host.CriuCommand("dump", images).Args
		job := host.StartUnder(append([]string{
			"/bin/sh", "-c", `begin=$1 status=$2; shift 2
				while [ $1 != -- ]; do criu="$criu $1"; shift; done; shift
				"$@" &
				until [ -e $begin ]; do sleep 0.05; done
				$criu -t $$; echo $? >$status.new; mv $status.new $status
				wait`, "sh", begin, status,
		}, append(criu, "--")...), 1)
		if err := os.WriteFile(begin, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "criu ends", func() bool {
			_, err := os.Stat(status)
			return err == nil
		})
		log, err := os.ReadFile(filepath.Join(images, "dump.log"))
		if err != nil || !strings.Contains(string(log), "refused, nothing was touched: "+preflight.FindingCriuInside) {
			t.Fatalf("criu in the tree is not refused: %v\n%s", err, testenv.CriuRun{Log: string(log)}.Lines())
		}
		if sessions := host.Sessions(); len(sessions) != 0 {
			t.Errorf("a refusal made a session: %+v", sessions)
		}
		job.Runs()
	})
}

// The dev of the job is on a file system whose server never answers.
func TestADevThatHangsEndsTheDumpAtTheDeadline(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nlock: {timeout: 5s}\n"))
		job := host.StartUnder([]string{"/usr/bin/unshare", "-m"}, 1)
		server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Skipf("this kernel has no FUSE: %v", err)
		}
		released := func() { _ = server.Close() } // programs that wait for an answer get an error
		t.Cleanup(released)
		mount := exec.Command("/usr/bin/nsenter", "-t", job.Root(), "-m", "/bin/mount", "-i", "-t", "fuse",
			"-o", "fd=3,rootmode=40000,user_id=0,group_id=0", "hangs", filepath.Join(host.Dir, "dev"))
		mount.ExtraFiles = []*os.File{server}
		if out, err := mount.CombinedOutput(); err != nil {
			t.Fatalf("mount FUSE: %v\n%s", err, out)
		}
		run := host.TryDump(job, t.TempDir())
		if run.Err == nil || !strings.Contains(run.Log, fmt.Sprintf("process %d (cudawork): its /dev does not answer", job.PID)) {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		if sessions := host.Sessions(); len(sessions) != 0 {
			t.Errorf("a refusal made a session: %+v", sessions)
		}
		released()
		if err := unix.Kill(job.PID, 0); err != nil {
			t.Fatal(err)
		}
		job.Runs()
	})
}

// Linux before 5.18 cannot drop locked memory, so criu writes it. This kernel can, so the
// test makes the check fail.
func TestLockedMemoryThatTheKernelCannotDropIsLeftToCriu(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.UseFailpoint("dump.drop-locked=error")
		for _, test := range []struct {
			args   []string
			toCriu bool
		}{{[]string{"--mib", "16", "--mlock"}, true}, {[]string{"--mib", "16"}, false}} {
			job := host.Start(1, test.args...)
			images := host.Dump(job)
			manifest, err := imagedir.ReadManifest(images)
			if err != nil {
				t.Fatal(err)
			}
			if toCriu := manifest.Processes[0].Pages == nil; toCriu != test.toCriu {
				t.Errorf("%v: left to criu %v, want %v", test.args, toCriu, test.toCriu)
			}
			host.Restore(images)
			job.Runs()
		}
	})
}

// TestALauncherThatIsLeftBehindIsNamed, and a shell that has started a job is none. If it has other
// workers with CUDA, the dump of one of them is refused.
func TestALauncherThatIsLeftBehindIsNamed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder([]string{"/bin/sh", "-c", `"$@" & wait`, "sh"}, 1)
		worker := job.MustStatus(0).PID
		found := testenv.Check(t, host, "-t", strconv.Itoa(worker)).Of(preflight.SeverityWarning)
		at := slices.IndexFunc(found, func(f preflight.Finding) bool { return f.Name == preflight.FindingParent })
		if at < 0 || !strings.Contains(found[at].Remedy, "-t "+job.Root()) {
			t.Errorf("check of the worker: %+v", found)
		}
		if found := testenv.Check(t, host, "-t", job.Root()); found.Has(preflight.FindingParent) {
			t.Errorf("check of the whole job: %+v", found)
		}

		pair := host.Start(2, "--procs", "2")
		child := testenv.JobOf(t, pair.MustStatus(1).PID)
		testenv.Refused(t, host, child, preflight.FindingParent, t.TempDir())
		pair.Runs()
		testenv.Exits(t, host, 0, "dump", "-t", child.Root(), "-D", testenv.NewImages(t), "--force", preflight.FindingParent, "-R")
	})
}

// TestTheGPUIsFull: what is checkpointed could not be sure to come back to it.
func TestTheGPUIsFull(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "100")
		job, other := host.Start(1, "--mib", "40"), host.Start(1, "--mib", "50")
		job.Runs()
		other.Runs()
		testenv.Refused(t, host, job, "gpu-memory", testenv.NewImages(t))
		job.Runs()
		other.Kill()
		host.Restore(host.Dump(job))
		job.Runs()
		job.Check()
	})
}

// TestAnotherProgramUsesAGPUOfRanks: what the driver has restored keeps a GPU for as long as a kernel runs, and those
// of a job on several GPUs wait for each other, whether it has one process or several.
func TestAnotherProgramUsesAGPUOfRanks(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job, other := host.Start(2, "--ranks", "2", "--gpus", "0,1"), host.Start(1)
		testenv.Refused(t, host, job, preflight.FindingGPUInUse, testenv.NewImages(t))
		both := host.Start(1, "--gpus", "0,1")
		testenv.Refused(t, host, both, preflight.FindingGPUInUse, testenv.NewImages(t))
		both.Kill()
		job.Runs()
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--force", preflight.FindingGPUInUse, "-R")
		host.Restore(host.Dump(other)) // on one GPU
		other.Runs()
		other.Kill()
		host.Restore(host.Dump(job))
		job.Runs()
		job.Check()
	})
}
