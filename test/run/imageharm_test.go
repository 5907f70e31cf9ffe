package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// imageOf starts the job of a world, and makes a checkpoint of it.
func (w *world) imageOf() (original *run, image string) {
	w.t.Helper()
	w.flags = []string{"--every", "0"}
	original = w.run()
	original.ticksOn()
	w.checkpoint()
	return original, filepath.Join(w.dir, "checkpoints", "000001")
}

// startsFrom starts the job of a world that [world.from] has made of an image, and waits until it runs.
func (w *world) startsFrom(image *world) *run {
	w.t.Helper()
	r := w.startFrom(image)
	r.says("from image")
	r.ticksOn()
	return r
}

// TestEightJobsFromOneImageAtOnce are all right, also if they have files without a name in a directory that they share.
func TestEightJobsFromOneImageAtOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, shared := emptyWorld(t), t.TempDir()
		file := filepath.Join(w.work, "program.py")
		testenv.WriteFile(t, file, prelude+`
os.mkdir(shared + "/gone")
os.chdir(shared + "/gone")
os.rmdir(shared + "/gone")
gone = open(shared + "/file", "w+")
os.unlink(shared + "/file")
def tick(n):
    gone.seek(0)
    assert n == 1 or gone.read() == str(n - 1)
    gone.seek(0)
    gone.write(str(n))
    gone.flush()
`+loop)
		w.command = []string{"python3", file, w.work, shared, "-"}
		original, _ := w.imageOf()
		var runs []*run
		for range 8 {
			runs = append(runs, w.from().startFrom(w))
		}
		for _, r := range runs {
			r.says("from image")
		}
		for i, r := range append(runs, original) {
			r.ticksOn()
			r.w.stop(i)
			r.ends(i)
		}
		if left, err := os.ReadDir(shared); err != nil || len(left) > 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
		w.noProcesses()
	})
}

// TestACopyOfAJobFromAnImageRunsNowhere while the job runs, and when it does not. Nor do two run in one directory.
func TestACopyOfAJobFromAnImageRunsNowhere(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original, _ := w.imageOf()
		job := w.from()
		r, second := job.startFrom(w), job.startFrom(w) // at the same time
		testenv.Eventually(t, testenv.Soon, "one of them ends", func() bool {
			select {
			case <-r.done:
				r, second = second, r
				return true
			case <-second.done:
				return true
			default:
				return false
			}
		})
		second.ends(125, "D already runs here")
		r.says("from image")
		r.ticksOn()
		dir := job.dir + "-2"
		for _, ends := range []bool{false, true} {
			if ends {
				r.signal(unix.SIGTERM)
				r.ends(requeue)
			}
			if out, err := exec.Command("cp", "-a", job.dir, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, args := range [][]string{{}, {"--image", w.dir}, {"--name", "other"}} {
				out, err := w.host.Cucriu(append([]string{"run", "--dir", dir}, args...)...)
				if err == nil || !strings.Contains(out, dir+" was moved or copied") {
					t.Errorf("%v: %v\n%s", args, err, out)
				}
			}
			must(t, os.RemoveAll(dir))
		}
		r = job.again()
		r.resumed("000001")
		for _, r := range []*run{r, original} {
			r.w.stop(0)
			r.ends(0)
		}
		w.noProcesses()
	})
}

// TestADamagedImageStartsNoJob, and a job that was started before goes on.
func TestADamagedImageStartsNoJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original, image := w.imageOf()
		job := w.from()
		r := job.startsFrom(w)
		for _, pattern := range []string{
			"pages-*.img", "files.img", "cucriu-file-*", "cucriu-job.json", "cucriu-files.json",
		} {
			files := glob(image, pattern)
			if len(files) == 0 {
				t.Fatalf("no %s", pattern)
			}
			intact, err := os.ReadFile(files[0])
			must(t, err)
			damaged := append([]byte(nil), intact...)
			damaged[len(damaged)/2] ^= 1
			must(t, os.WriteFile(files[0], damaged, 0o600))
			other := w.from()
			started := other.startFrom(w)
			started.ends(3, "cucriu: error: image "+image, filepath.Base(files[0]))
			if testenv.Exists(other.dir) {
				t.Errorf("%s: left over: %s", pattern, tree(t, other.dir))
			}
			must(t, os.WriteFile(files[0], intact, 0o600))
			started = other.startsFrom(w)
			other.stop(0)
			started.ends(0)
		}
		for _, r := range []*run{r, original} {
			r.ticksOn()
			r.w.stop(0)
			r.ends(0)
		}
	})
}

// TestWhatHappensDuringAStartFromAnImage to the job that the image was made of harms neither.
func TestWhatHappensDuringAStartFromAnImage(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"image.noted", "image.copied", "image.laid-out", "jobs.restored"} {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWorld(t)
				original, image := w.imageOf()
				for _, what := range []string{"checkpoint", "kill", "resume", "preempt", "prune"} {
					t.Log(what)
					job := w.from()
					s := job.stopAt(step)
					flags := []string{"--image", image, "--private", w.work, "--every", "0"}
					r := job.start(s.host.CucriuCommand(append([]string{"run", "--dir", job.dir}, flags...)...), flags)
					s.await(r)
					switch what {
					case "checkpoint":
						w.checkpoint()
					case "kill":
						original.kill()
						_ = unix.Kill(w.place().Init.PID, unix.SIGKILL)
					case "resume":
						original = w.run()
						original.ticksOn()
					case "preempt":
						original.signal(unix.SIGTERM)
						original.ends(requeue)
					case "prune":
						if out, err := w.host.Cucriu("jobs", "prune", w.dir, "--keep", "1"); err != nil {
							t.Errorf("%v\n%s", err, out)
						}
						if out, err := w.host.Cucriu("jobs", "rm", w.dir, "--yes"); err == nil || !strings.Contains(out, job.dir) {
							t.Errorf("%v\n%s", err, out)
						}
					}
					if out, err := w.host.Cucriu("jobs", "rm", job.dir, "--yes"); err == nil {
						t.Errorf("a job that is being started was removed: %s", out)
					}
					s.goOn()
					r.says("from image")
					r.ticksOn()
					job.stop(0)
					r.ends(0)
				}
				original = w.run()
				original.ticksOn()
				w.stop(0)
				original.ends(0)
				w.noProcesses()
			})
		})
	}
}

// TestAFullDiskStartsNoJobFromAnImage, and the same command does once there is room.
func TestAFullDiskStartsNoJobFromAnImage(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		testenv.WriteFile(t, filepath.Join(w.work, "large"), strings.Repeat("x", 8<<20))
		original, _ := w.imageOf()
		job := w.from()
		disk := filepath.Dir(job.dir)
		must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"))
		t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
		r := job.startFrom(w)
		r.ends(3, "o space left on device")
		if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
		must(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=64m"))
		r = job.startsFrom(w)
		for _, r := range []*run{r, original} {
			r.w.stop(0)
			r.ends(0)
		}
	})
}

// TestAJobFromAnImageWhoseDirectoryIsRemoved ends, and leaves those beside it alone.
func TestAJobFromAnImageWhoseDirectoryIsRemoved(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original, _ := w.imageOf()
		job, other := w.from(), w.from()
		r, beside := job.startsFrom(w), other.startsFrom(w)
		must(t, os.RemoveAll(job.dir))
		r.signal(unix.SIGTERM)
		r.ends(125, "job directory "+job.dir+" was moved or removed")
		for i, r := range []*run{beside, original} {
			r.ticksOn()
			r.w.stop(i)
			r.ends(i)
		}
		w.noProcesses()
	})
}

// TestAJobFromAnImageGoesOnWithoutIt from its own checkpoint, also if the directories that it has copies of are gone.
func TestAJobFromAnImageGoesOnWithoutIt(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		original, _ := w.imageOf()
		job := w.from()
		r := job.startsFrom(w)
		r.signal(unix.SIGTERM)
		r.ends(requeue)
		w.stop(0)
		original.ends(0)
		must(t, os.RemoveAll(w.dir))
		must(t, os.RemoveAll(w.work))
		r = job.again()
		r.resumed("000001")
		job.stop(0)
		r.ends(0)
	})
}
