package run

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// older is the host of a world where cucriu is an earlier one, which knows no library as new as that of today's jobs.
func (w *world) older() *testenv.Host {
	w.t.Helper()
	host := w.host.For(w.t)
	host.HookBin = testenv.Artefact(w.t, "make build", "build", "test", "older", "cucriu-hook")
	return host
}

// asToday names the cucriu of a world.
func (w *world) asToday() string {
	w.t.Helper()
	out, err := w.host.Cucriu("--version")
	must(w.t, err)
	return "use cucriu " + strings.TrimPrefix(strings.TrimSpace(out), "cucriu version ") + ", which has made it, or a newer one"
}

// newLibraryWorld makes a world for a job whose library has GPU memory to move.
func newLibraryWorld(t *testing.T) *world {
	t.Helper()
	w := emptyWorld(t)
	w.command = []string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--mib", "32"}
	w.cuda = w.work
	return w
}

// TestAnImageOfAnEarlierVersionStartsJobs, which keep its library, and go on with either version.
func TestAnImageOfAnEarlierVersionStartsJobs(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newLibraryWorld(t)
		today, older := w.host, w.older()
		w.host = older
		original, _ := w.imageOf()
		w.host = today
		job := w.from()
		r := job.startFrom(w)
		r.says("from image")
		job.checks()
		library, err := os.ReadFile(filepath.Join(w.dir, "guest.so"))
		must(t, err)
		if own, err := os.ReadFile(filepath.Join(job.dir, "guest.so")); err != nil || !bytes.Equal(own, library) {
			t.Errorf("the job has another library: %v", err)
		}
		record, err := os.ReadFile(filepath.Join(job.dir, "job.json"))
		if err != nil || !strings.Contains(string(record), `"version": 2`) {
			t.Errorf("a cucriu without images would resume it in the files of the original: %v\n%s", err, record)
		}
		for n, host := range []*testenv.Host{older, today} {
			r.signal(unix.SIGTERM)
			r.ends(requeue)
			job.host = host
			r = job.again()
			r.resumed([]string{"000001", "000002"}[n])
			job.checks()
		}
		w.checks()
		for _, r := range []*run{r, original} {
			r.w.stop(0)
			r.ends(0)
		}
	})
}

// TestAnImageOfALaterVersionStartsNoJob if its library is newer: that is known before anything is touched, and the
// version that can is named. Nor does such a checkpoint resume, and no older one in its place: nothing is lost when
// the version that can comes back.
func TestAnImageOfALaterVersionStartsNoJob(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newLibraryWorld(t)
		today, older, named := w.host, w.older(), w.asToday()
		const refused = "its processes have cucriu's library of version 9, and this cucriu knows those up to 8: "
		original, image := w.imageOf()
		w.checkpoint()
		before := content(t, image)
		job := w.from()
		job.host = older
		job.startFrom(w).ends(3, refused+named)
		if testenv.Exists(job.dir) {
			t.Errorf("left over: %s", tree(t, job.dir))
		}
		original.signal(unix.SIGTERM)
		original.ends(requeue)
		w.host = older
		w.again().ends(125, "checkpoint 000003 of ", "cannot be restored here: ", refused+named)
		copied := filepath.Join(t.TempDir(), "copy")
		must(t, os.CopyFS(copied, os.DirFS(image)))
		w.exits(3, refused+named, "restore", "-D", copied)
		if after := content(t, image); !maps.Equal(before, after) {
			t.Errorf("the image had %d files, and has %d", len(before), len(after))
		}
		w.host = today
		w.again().resumed("000003")
		w.checks()
	})
}

// TestWhatALaterVersionHasWrittenIsNotDamaged: neither another checkpoint nor another image is taken in its place.
func TestWhatALaterVersionHasWrittenIsNotDamaged(t *testing.T) {
	testenv.Parallel(t)
	for _, name := range []string{"cucriu.json", "checkpoint.json"} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				original, _ := w.imageOf()
				w.checkpoint()
				original.signal(unix.SIGTERM)
				original.ends(requeue)
				file := filepath.Join(w.dir, "checkpoints", "000003", name)
				data, err := os.ReadFile(file)
				must(t, err)
				testenv.WriteFile(t, file, regexp.MustCompile(`"version": *\d+`).ReplaceAllString(string(data), `"version": 99`))
				w.again().ends(125, name+" has version 99, but this cucriu reads versions up to ", ": use ")
				w.from().startFrom(w).ends(3, name+" has version 99, but this cucriu reads versions up to ", ": use ")
				if marks := glob(filepath.Dir(file), "*ed*.json"); len(marks) > 1 { // verified.json
					t.Errorf("it is marked: %v", marks)
				}
				must(t, os.WriteFile(file, data, 0o600))
				w.again().resumed("000003")
				w.checks()
			})
		})
	}
}
