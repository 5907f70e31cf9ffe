package run

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestAJobWithACopyOfItsImageNeedsNoOther: it is started again, without a checkpoint of its own, when the image and the
// job that it was made of are gone. What it was started with decides.
func TestAJobWithACopyOfItsImageNeedsNoOther(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		original, image := w.imageOf()
		plain := w.from()
		plainRun := plain.startsFrom(w)
		job := w.from()
		r := job.startFrom(w, "--copy-image")
		r.says("from image " + image)
		job.checks()
		out, err := w.host.Cucriu("inspect", image)
		if err != nil || !strings.Contains(out, plain.dir) || strings.Contains(out, job.dir) {
			t.Errorf("the image is kept for the job: %v\n%s", err, out)
		}
		plainRun.kill()
		_ = unix.Kill(plain.place().Init.PID, unix.SIGKILL)
		plain.again("--copy-image").ends(125, "was started without a copy of its image")
		plain.again("--copy-image=false").says("from image")
		plain.stop(0)
		plain.runs[len(plain.runs)-1].ends(0)
		r.kill()
		_ = unix.Kill(job.place().Init.PID, unix.SIGKILL)
		w.stop(0)
		original.ends(0)
		must(t, os.RemoveAll(w.dir))
		job.again("--copy-image=false").ends(125, "has a copy of its image since its first start")
		r = job.startFrom(w, "--copy-image")
		r.says("from image " + image)
		job.checks()
		job.stop(0)
		r.ends(0)
		if out, err := w.host.Cucriu("jobs", "rm", job.dir, "--yes"); err != nil || testenv.Exists(job.dir) {
			t.Errorf("%v\n%s\n%s", err, out, tree(t, job.dir))
		}
		w.noProcesses()
	})
}

// TestNoKillDuringTheCopyOfAnImageLosesAnything: the image is as it was, and the same command starts the job.
func TestNoKillDuringTheCopyOfAnImageLosesAnything(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"image.copy.copied", "image.copy.compared", "image.copy.named"} {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				original, image := w.imageOf()
				before := content(t, image)
				w.surviveKilledStart(step, supervisorKilled, "--copy-image")
				if after := content(t, image); !reflect.DeepEqual(without(before, "trial.json"), without(after, "trial.json")) {
					t.Errorf("the image had %d files, and has %d", len(before), len(after))
				}
				w.checks()
				w.stop(0)
				original.ends(0)
			})
		})
	}
}

// TestNoCopyOfADamagedImage is made, nor where a disk has no room for one, and nothing is left over.
func TestNoCopyOfADamagedImage(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newMixedWorld(t)
		original, image := w.imageOf()
		pages := glob(image, "cucriu-pages-*-0.img")
		if len(pages) == 0 {
			t.Fatal("the image has no GPU state")
		}
		intact, err := os.ReadFile(pages[0])
		must(t, err)
		damaged := append([]byte(nil), intact...)
		damaged[len(damaged)/2] ^= 1
		must(t, os.WriteFile(pages[0], damaged, 0o600))
		job := w.from()
		job.startFrom(w, "--copy-image").ends(testenv.StatusRefused, image, filepath.Base(pages[0]))
		if testenv.Exists(job.dir) {
			t.Errorf("left over: %s", tree(t, job.dir))
		}
		must(t, os.WriteFile(pages[0], intact, 0o600))
		disk := filepath.Dir(job.dir)
		mount(t, "tmpfs", disk, "tmpfs", 0, "size=1m")
		job.startFrom(w, "--copy-image").ends(testenv.StatusRefused, "its copy takes", "leave out --copy-image")
		if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
			t.Errorf("left over: %v, %v", left, err)
		}
		w.checks()
		w.stop(0)
		original.ends(0)
	})
}
