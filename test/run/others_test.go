package run

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// counts counts in a file in the background, as a process whose parent has ended.
const counts = `setsid -f sh -c 'i=0; while :; do i=$((i+1)); echo $i >"$0/n.new"; mv "$0/n.new" "$0/n"; sleep 0.05; done' "$0"; `

// counted is how far that has come.
func (w *world) counted() int {
	data, _ := os.ReadFile(filepath.Join(w.work, "n"))
	n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return n
}

func (w *world) countsOn() {
	w.t.Helper()
	from := w.counted()
	testenv.Eventually(w.t, 3*testenv.Soon, "it counts on from "+strconv.Itoa(from), func() bool { return w.counted() > from+2 })
}

// newOthersWorld makes a world for a job that is a shell script, in which $0 is the folder of its files.
func newOthersWorld(t *testing.T, script string) *world {
	t.Helper()
	w := emptyWorld(t)
	w.flags = []string{"--every", "0"}
	w.command = []string{"sh", "-c", script, w.work}
	return w
}

// TestAProcessWhoseParentHasEndedIsInTheCheckpoint, with its GPU state: it is paused, preempted, resumed and
// stopped with the job.
func TestAProcessWhoseParentHasEndedIsInTheCheckpoint(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		cuda := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
		w := newOthersWorld(t, counts+"("+cuda+` --dir "$0/cuda" --mib 1 >/dev/null 2>&1 &); exec sleep 100000`) // in the command's session
		w.cuda = filepath.Join(w.work, "cuda")
		if err := os.Mkdir(w.cuda, 0o700); err != nil {
			t.Fatal(err)
		}
		r := w.run()
		w.checks()
		w.countsOn()
		for _, command := range []string{"checkpoint", "pause"} {
			if out, err := w.host.Cucriu("jobs", command, w.dir); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
		}
		paused := w.counted()
		if out, err := w.host.Cucriu("jobs", "show", w.dir); err != nil || !strings.Contains(out, "paused") {
			t.Fatalf("%s: %v", out, err)
		}
		if now := w.counted(); now != paused {
			t.Errorf("the job was paused, and a process of it has counted from %d to %d", paused, now)
		}
		if out, err := w.host.Cucriu("jobs", "resume", w.dir); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		w.countsOn()
		r.signal(unix.SIGTERM)
		r.ends(75)
		w.noProcesses()
		r = w.run()
		r.says("D resumes from checkpoint")
		w.countsOn()
		w.checks()
		if out, err := w.host.Cucriu("jobs", "stop", w.dir); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		r.ends(75)
		r = w.run()
		w.countsOn()
		w.checks()
		r.killsAll()
	})
}

// TestWhatACommandLeavesIsEndedWithIt: it is named, and gets SIGTERM first. The status is the command's.
func TestWhatACommandLeavesIsEndedWithIt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newOthersWorld(t, `setsid -f sh -c 'trap "echo >$0/term; exit" TERM; echo >"$0/ready"; while :; do sleep 0.05; done' "$0"
			while [ ! -e "$0/ready" ]; do sleep 0.05; done; exit 3`)
		w.run().ends(3, "other processes of the job run, which are ended", "(sh)", "D has ended with exit status 3")
		if !testenv.Exists(filepath.Join(w.work, "term")) {
			t.Error("it got no SIGTERM")
		}
		w.nothingLeft()
	})
}

// TestASignalWhileLeftoversAreEndedDoesNotUndoTheEnd: the command has finished, and is not run again.
func TestASignalWhileLeftoversAreEndedDoesNotUndoTheEnd(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newOthersWorld(t, `setsid -f sh -c 'trap "" TERM; echo >"$0/ready"; while :; do sleep 0.05; done' "$0"
			while [ ! -e "$0/ready" ]; do sleep 0.05; done; exit 0`)
		r := w.run()
		r.says("other processes of the job run, which are ended")
		time.Sleep(1500 * time.Millisecond) // what comes sooner may have ended the command, too
		r.signal(unix.SIGTERM)
		r.ends(0)
		w.run().ends(0, "D has finished on")
		w.nothingLeft()
	})
}

// TestAJobIsWaitedForToItsLastProcess, also over a preemption after the end of its command, whose status is
// the job's.
func TestAJobIsWaitedForToItsLastProcess(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newOthersWorld(t, `setsid -f sh -c 'while [ ! -e "$0/stop" ]; do sleep 0.05; done; echo >"$0/over"' "$0"; `+counts+`exit 5`)
		r := w.run("--wait-all")
		r.says("the command of D has ended, and the job waits for its other processes")
		w.countsOn()
		r.signal(unix.SIGTERM)
		r.ends(75)
		r = w.run("--wait-all")
		r.says("D resumes from checkpoint")
		w.countsOn()
		w.stop(0)
		testenv.Eventually(t, testenv.Soon, "one of them has ended", func() bool { return testenv.Exists(filepath.Join(w.work, "over")) })
		w.countsOn()
		r.signal(unix.SIGINT) // as to the command, while that ran
		r.ends(5, "D has ended with exit status 5")
		w.nothingLeft()
	})
}

// TestTheCommandGetsItsSignalsOnce below our first process, and leads a session without it.
func TestTheCommandGetsItsSignalsOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newOthersWorld(t, `trap 'echo usr >>"$0/got"' USR1; trap 'echo int >>"$0/got"' INT
			while [ ! -e "$0/stop" ]; do cat /proc/$$/stat >"$0/stat"; sleep 0.05; done; kill -TERM $$`)
		r := w.run()
		var stat []string
		r.awaits("the command runs", func() bool {
			data, _ := os.ReadFile(filepath.Join(w.work, "stat"))
			stat = strings.Fields(string(data))
			return len(stat) > 6
		})
		if pid, group, session := stat[0], stat[4], stat[5]; pid != group || pid != session {
			t.Errorf("process %s is in group %s and session %s", pid, group, session)
		}
		want := ""
		for _, round := range []struct {
			sig  unix.Signal
			send func()
		}{
			{unix.SIGUSR1, func() { r.signal(unix.SIGUSR1) }},
			{unix.SIGINT, func() { r.signal(unix.SIGINT) }},
			{unix.SIGUSR1, func() { _ = unix.Kill(rootOf(t, w), unix.SIGUSR1) }}, // which passes it on
		} {
			round.send()
			want += map[unix.Signal]string{unix.SIGUSR1: "usr\n", unix.SIGINT: "int\n"}[round.sig]
			r.awaits("the command has got "+round.sig.String(), func() bool {
				data, _ := os.ReadFile(filepath.Join(w.work, "got"))
				return string(data) == want
			})
		}
		w.stop(0)
		r.ends(128+int(unix.SIGTERM), "D was killed by SIGTERM")
		w.nothingLeft()
	})
}

// TestAJobWithoutAFirstProcessIsRefusedWhatItWouldLeaveBehind, by name, and is dumped and resumed without
// that, as those are that an earlier version has started.
func TestAJobWithoutAFirstProcessIsRefusedWhatItWouldLeaveBehind(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newOthersWorld(t, `setsid -f sh -c 'while [ ! -e "$0/stop" ]; do sleep 0.05; done' "$0"; exec sleep 100000`)
		must(t, os.MkdirAll(filepath.Dir(w.dir), 0o755))
		must(t, unix.Mount("tmpfs", filepath.Dir(w.dir), "tmpfs", unix.MS_NOEXEC, "mode=755"))
		defer unix.Unmount(filepath.Dir(w.dir), unix.MNT_DETACH)
		r := w.run()
		r.says("the job has no first process of cucriu's")
		for _, command := range []string{"checkpoint", "pause"} {
			r.awaits(command+" is refused", func() bool {
				out, err := w.host.Cucriu("jobs", command, w.dir)
				return err != nil && strings.Contains(out, "(sh) of the job has left its process tree")
			})
		}
		w.stop(0)
		r.awaits("a checkpoint is made", func() bool {
			_, err := w.host.Cucriu("jobs", "checkpoint", w.dir)
			return err == nil
		})
		r.signal(unix.SIGTERM)
		r.ends(75)
		r = w.run()
		r.says("D resumes from checkpoint")
		if err := unix.Kill(rootOf(t, w), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.ends(128+int(unix.SIGKILL), "D was killed by SIGKILL")
	})
}
