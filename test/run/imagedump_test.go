package run

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestADumpStartsJobsWhileItsFilesAreUnchanged: it does not hold those that its job was writing. That job may be
// restored, too.
func TestADumpStartsJobsWhileItsFilesAreUnchanged(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--mib", "1")
		image := filepath.Join(t.TempDir(), "image")
		says := func(text string, args ...string) {
			t.Helper()
			if out, err := host.Cucriu(args...); err != nil || !strings.Contains(out, text) {
				t.Fatalf("%v; want %q\n%s", err, text, out)
			}
		}
		says("a restore needs 2 visible GPUs, and the job uses 1", "dump", "-t", job.Root(), "-D", image)
		says("a restore needs 2 visible GPUs, and the job uses 1\n", "inspect", image)
		says("files of their own in /dev/shm, "+job.Dirs[0]+"\n", "inspect", image)
		before := content(t, image)
		fresh := func() *world {
			w := worldOn(t, host)
			w.work = filepath.Join(w.dir, "private", "0") // the copy of the job's directory
			w.cuda = w.work
			return w
		}
		start := func(w *world) *run {
			return w.start(host.CucriuCommand("run", "--dir", w.dir, "--image", image, "--every", "0"), nil)
		}
		a, b := fresh(), fresh()
		of, other := start(a), start(b)
		for _, r := range []*run{of, other} {
			r.says("from image " + image)
			r.w.ticks(3)
			r.w.checks()
			if e, _ := r.w.last("started"); e.Duration == 0 || !strings.Contains(e.Phases.String(), "sandbox") {
				t.Errorf("the start took %v: %v", e.Duration, e.Phases)
			}
		}
		of.signal(unix.SIGTERM)
		of.ends(requeue)
		of = a.again()
		of.resumed("000001")
		a.checks()

		other.kill() // its job has no checkpoint
		_ = unix.Kill(b.place().Init.PID, unix.SIGKILL)
		testenv.WriteFile(t, filepath.Join(b.work, "stderr"), "it has written to its copy")
		b.again().ends(3, "image-incomplete", "stderr")
		a.stop(0)
		of.ends(0)

		log := filepath.Join(job.Dirs[0], "stderr")
		data, err := os.ReadFile(log)
		must(t, err)
		info, err := os.Stat(log)
		must(t, err)
		testenv.WriteFile(t, log, string(data)+"more")
		start(fresh()).ends(3, "image-incomplete", log)
		says("starts no job from it: image-incomplete", "inspect", image)
		must(t, os.Truncate(log, info.Size()))
		must(t, os.Chtimes(log, info.ModTime(), info.ModTime()))
		start(fresh()).ends(3, "image-incomplete", log) // nobody can know that it is the same again
		if out, err := host.Cucriu("restore", "-D", image); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		job.Runs()
		if after := content(t, image); len(after) != len(before) {
			t.Errorf("the image had %d files, and has %d", len(before), len(after))
		}
	})
}

// TestADumpThatNeedsATerminalStartsNoJob, and neither does an image that criu has made alone.
func TestADumpThatNeedsATerminalStartsNoJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		_, terminal := testenv.NewTerminal(t)
		job := host.StartWith(func(command []string) int {
			cmd := host.Command(command[0], command[1:]...)
			cmd.Stdin, cmd.SysProcAttr = terminal, &syscall.SysProcAttr{Setsid: true, Setctty: true}
			must(t, cmd.Start())
			go func() { _ = cmd.Wait() }()
			return cmd.Process.Pid
		}, nil, 1, "--mib", "1")
		image, dir := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "D")
		if out, err := host.Cucriu("dump", "-t", job.Root(), "-D", image, "--shell-job"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		refused := func(says string) {
			t.Helper()
			out, err := host.Cucriu("run", "--dir", dir, "--image", image)
			if err == nil || !strings.Contains(out, says) || testenv.Exists(filepath.Join(dir, "job.json")) {
				t.Errorf("%v; want %q\n%s", err, says, out)
			}
		}
		refused("has a terminal")
		must(t, os.Remove(filepath.Join(image, "cucriu-checksums.json")))
		refused("has no checksums")
	})
}

// TestAJobOnSeveralGPUsIsToldOfAnotherProgramOnOneOfThem when it is started from an image.
func TestAJobOnSeveralGPUsIsToldOfAnotherProgramOnOneOfThem(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		start := func(image string, gpus string, says bool) {
			w := worldOn(t, host)
			r := w.start(host.CucriuCommand("run", "--dir", w.dir, "--image", image, "--every", "0"), nil)
			r.says("from image " + image)
			if told := strings.Contains(r.said(), "gpu-in-use: process "); told != says {
				t.Errorf("GPUs %s, told: %v\n%s", gpus, told, r.said())
			}
			r.signal(unix.SIGINT)
			<-r.done
		}
		for _, gpus := range []string{"0", "0,1"} {
			job := host.Start(1, "--mib", "1", "--gpus", gpus)
			image := filepath.Join(t.TempDir(), "image")
			if out, err := host.Cucriu("dump", "-t", job.Root(), "-D", image); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			start(image, gpus, false)
			other := host.Start(1, "--mib", "1", "--gpus", "1")
			start(image, gpus, gpus != "0")
			other.Kill()
		}
	})
}
