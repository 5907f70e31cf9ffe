package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

const noCUDAHere = "needs the simulated driver: NVIDIA's cuInit answers 304 in a pid namespace with the /proc of another"

// pidNamespace is a pid namespace that exists before and after the processes that run in
// it.
type pidNamespace struct {
	t    *testing.T
	host *testenv.Host
	file string
}

func newPIDNamespace(t *testing.T, host *testenv.Host) *pidNamespace {
	t.Helper()
	// A shell also reaps the processes that it inherits. It starts no more than one of its own: then the job
	// gets one of the first pids, however late it is, and outside somebody has those.
	holder := host.Spawn(t.TempDir(), "unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "while sleep 10000; do :; done")
	n := &pidNamespace{t: t, host: host}
	testenv.Eventually(t, testenv.Soon, "the namespace has its first process", func() bool {
		children, err := proc.Children(holder)
		if err != nil || len(children) != 1 {
			return false
		}
		n.file = fmt.Sprintf("/proc/%d/ns/pid", children[0])
		return true
	})
	return n
}

// enter returns a command line that starts a program in the namespace, as the leader of a
// session and in a directory of its own: /proc is another namespace's, so criu mounts one in
// the working directory, under a name that a dump of another test would take as well.
func (n *pidNamespace) enter(program ...string) []string {
	// Not as nsenter's own child: when that stops, nsenter stops itself.
	return append([]string{"nsenter", "--no-fork", "--pid=" + n.file, "--", "sh", "-c", `cd "$0" && { "$@" & wait; }`, n.t.TempDir(), "setsid"}, program...)
}

// find returns the process that has this pid in the namespace.
func (n *pidNamespace) find(imagePID int) int {
	n.t.Helper()
	found := 0
	testenv.Eventually(n.t, testenv.Soon, fmt.Sprintf("pid %d of the namespace is there", imagePID), func() bool {
		pids, err := proc.All()
		for _, pid := range pids {
			status, statusErr := proc.ReadStatus(pid)
			if statusErr == nil && len(status.NSPID) == 2 && status.ImagePID() == imagePID {
				found = pid
			}
		}
		return err == nil && found > 0
	})
	return found
}

func (n *pidNamespace) dump(root int, images string) {
	n.t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(n.file, &stat); err != nil {
		n.t.Fatal(err)
	}
	pids, err := proc.Tree(root)
	if err != nil {
		n.t.Fatal(err)
	}
	run := n.host.RunCriu("dump", images, "-t", fmt.Sprint(root), "--external", fmt.Sprintf("pid[%d]:extRootPidNS", stat.Ino))
	if run.Err != nil {
		n.t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
	}
	testenv.Eventually(n.t, testenv.Soon, "the job is gone", func() bool { // criu does not wait for it
		return !slices.ContainsFunc(pids, func(pid int) bool { return !testenv.JobOf(n.t, pid).Gone() })
	})
}

// awaitReaped waits until no ended process in the namespace keeps its pid.
func (n *pidNamespace) awaitReaped() {
	n.t.Helper()
	testenv.Eventually(n.t, testenv.Soon, "what has ended in the namespace is reaped", func() bool {
		return !slices.ContainsFunc(testenv.PIDs(), func(pid int) bool {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && strings.Contains(string(data), ") Z ")
		})
	})
}

func (n *pidNamespace) restore(images string) testenv.CriuRun {
	n.t.Helper()
	n.awaitReaped()
	namespace, err := os.Open(n.file)
	if err != nil {
		n.t.Fatal(err)
	}
	defer namespace.Close()
	criu := n.host.CriuCommand("restore", images, "-d", "--inherit-fd", "fd[3]:extRootPidNS")
	criu.ExtraFiles = []*os.File{namespace}
	out, err := criu.CombinedOutput()
	log, _ := os.ReadFile(filepath.Join(images, "restore.log"))
	return testenv.CriuRun{Err: err, Log: string(out) + string(log)}
}

// TestAJobIsRestoredIntoAnExistingPIDNamespace: criu enters the namespace first, so its
// action script cannot use the pids that it sees in /proc.
func TestAJobIsRestoredIntoAnExistingPIDNamespace(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip(noCUDAHere)
	}
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		namespace := newPIDNamespace(t, host)
		job := host.StartUnder(namespace.enter(), 2, "--procs", "2", "--spin", "stream-sync")
		children, err := proc.Children(job.PID)
		if err != nil || len(children) != 1 {
			t.Fatal(children, err)
		}
		job.PID = children[0]
		root, err := proc.ReadStatus(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		images := t.TempDir()
		namespace.dump(job.PID, images)
		// Outside, another process has the pid that the root had inside.
		if run := namespace.restore(images); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		if got := host.RestoreOutcome(); got != "running" {
			t.Fatalf("outcome %q when criu has ended, want running", got)
		}
		job.PID = namespace.find(root.ImagePID())
		job.Runs()
		testenv.Eventually(t, testenv.Soon, "the watcher has ended", func() bool { return len(host.Watchers()) == 0 })
	})
}

func TestARestoreIntoAnExistingPIDNamespaceThatFailsEndsTheJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		namespace := newPIDNamespace(t, host)
		job := host.StartUnder(namespace.enter(), 1)
		children, err := proc.Children(job.PID)
		if err != nil || len(children) != 1 {
			t.Fatal(children, err)
		}
		job.PID = children[0]
		root, err := proc.ReadStatus(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		images := t.TempDir()
		namespace.dump(job.PID, images)
		host.Faults("restore return 999")
		namespace.restore(images)
		if got := host.RestoreOutcome(); got != "killed" {
			t.Fatalf("outcome %q, want killed", got)
		}
		host.Faults()
		if run := namespace.restore(images); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		job.PID = namespace.find(root.ImagePID())
		job.Runs()
	})
}

func TestAJobWithoutCUDAIsRestoredIntoAnExistingPIDNamespace(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		namespace := newPIDNamespace(t, host)
		command := namespace.enter("sleep", "1000")
		parent := host.Spawn(t.TempDir(), command[0], command[1:]...)
		var root int
		testenv.Eventually(t, testenv.Soon, "the job has begun", func() bool {
			children, err := proc.Children(parent)
			if err != nil || len(children) != 1 {
				return false
			}
			root = children[0]
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", root))
			return err == nil && string(comm) == "sleep\n"
		})
		status, err := proc.ReadStatus(root)
		if err != nil {
			t.Fatal(err)
		}
		images := t.TempDir()
		namespace.dump(root, images)
		if run := namespace.restore(images); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		namespace.find(status.ImagePID())
	})
}

func TestPIDsOfAnotherNamespaceAreNotTaken(t *testing.T) {
	if testenv.RealDriver() {
		t.Skip(noCUDAHere)
	}
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		namespace := newPIDNamespace(t, host)
		job := host.StartUnder(namespace.enter(), 1)
		children, err := proc.Children(job.PID)
		if err != nil || len(children) != 1 {
			t.Fatal(children, err)
		}
		job.PID = children[0]
		status, err := proc.ReadStatus(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		images := t.TempDir()
		namespace.dump(job.PID, images)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", status.ImagePID())); err != nil {
			t.Fatalf("nobody outside has the pid %d, so this test shows nothing: %v", status.ImagePID(), err)
		}
		testenv.NoErrors(t, host, "-D", images)
		if run := namespace.restore(images); run.Err != nil {
			t.Fatalf("criu restore: %v\n%s", run.Err, run.Lines())
		}
		job.PID = namespace.find(status.ImagePID())
		job.Runs()
	})
}

// TestARestoreAsPID1WaitsForItsJob: the pid namespace ends with its first process, and the job with it. And
// with the /proc of another namespace, pids are those of others.
func TestARestoreAsPID1WaitsForItsJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte("2000"), 0); err != nil { // not what the restore's own processes get
			t.Fatal(err)
		}
		job := host.Start(1)
		images := host.Dump(job)
		testenv.Eventually(t, testenv.Soon, "the job has ended", func() bool { return !job.Alive() })
		inside := func(options ...string) {
			host.Enter = func(name string, args []string) (string, []string) {
				return "unshare", slices.Concat([]string{"--pid", "--fork", "--kill-child"}, options, []string{name}, args)
			}
		}
		inside()
		if out := testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images, "--foreground"); !strings.Contains(out, "another pid namespace") {
			t.Errorf("with the /proc of another namespace: %s", out)
		}
		inside("--mount-proc")
		if out := testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images); !strings.Contains(out, "give --foreground") {
			t.Errorf("as PID 1: %s", out)
		}
		restore := host.CucriuCommand("restore", "-D", images, "--foreground")
		restore.Stdout, restore.Stderr = os.Stdout, os.Stderr
		if err := restore.Start(); err != nil {
			t.Fatal(err)
		}
		job.WaitTicks(3)
		_ = restore.Process.Kill()
		_ = restore.Wait()
	})
}
