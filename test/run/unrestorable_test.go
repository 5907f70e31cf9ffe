package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit"
	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/internal/jobs"
	"cucriu/internal/testenv"
)

// unrestorable are images that criu writes, or might write, and restores nowhere.
var unrestorable = []struct {
	name string
	edit func(t *testing.T, image string)
}{
	{"refused before anything is created", func(t *testing.T, image string) {
		ids := glob(image, "ids-*.img")
		editImage(t, ids[len(ids)-1], &criucore.TaskKobjIdsEntry{}, func(ids *criucore.TaskKobjIdsEntry) { *ids.NetNsId++ }) // a child in a namespace of its own
	}},
	{"failing later", func(t *testing.T, image string) {
		cores := glob(image, "core-*.img")
		editImage(t, cores[len(cores)-1], &criucore.CoreEntry{}, func(core *criucore.CoreEntry) { core.ThreadCore.SchedPolicy = proto.Uint32(6) }) // SCHED_DEADLINE
	}},
}

func editImage[T proto.Message](t *testing.T, path string, empty T, edit func(T)) {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	image, err := crit.New(in, nil, "", false, false).Decode(empty)
	if err != nil {
		t.Fatal(err)
	}
	edit(image.Entries[0].Message.(T))
	out, err := os.Create(path + ".new")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := crit.New(nil, out, "", false, false).Encode(image); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// spoils makes the next checkpoint of the job, which has no supervisor, one that cannot be restored,
// and kills everything.
func (w *world) spoils(t *testing.T, edit func(t *testing.T, image string)) {
	t.Helper()
	s := w.stopAt("jobs.dumped")
	r := w.runAs(s.host, append([]string{"--stage", "disk"}, once...)...)
	s.await(r)
	images, _ := filepath.Glob(filepath.Join(w.dir, "staged", "*", "image"))
	if len(images) != 1 {
		t.Fatalf("images: %v", images)
	}
	edit(t, images[0])
	s.goOn()
	r.verified(1)
	w.ticks(2)
	r.killsAll()
}

// filesOfJob returns the content of the files that the job has written.
func (w *world) filesOfJob(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, path := range append(glob(w.work, "ticks*"), glob(w.work, "page*")...) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = string(data)
	}
	return all
}

// sameFiles fails the test unless the job's files are as they were, with nothing beside them.
func (w *world) sameFiles(t *testing.T, before map[string]string) {
	t.Helper()
	for base, content := range w.filesOfJob(t) {
		if before[base] != content {
			t.Errorf("%s had %d bytes, and has %d", base, len(before[base]), len(content))
		}
	}
	if testenv.Exists(filepath.Join(w.dir, "undo.json")) {
		t.Error("the record of how to undo it is left over")
	}
}

// TestACheckpointThatNobodyCanRestoreGivesWayToAnOlderOne, with the files as that one needs them.
func TestACheckpointThatNobodyCanRestoreGivesWayToAnOlderOne(t *testing.T) {
	testenv.Parallel(t)
	for _, kind := range unrestorable {
		t.Run(kind.name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				r := w.run(once...)
				r.verified(1)
				r.kill()
				older := w.newest()
				w.spoils(t, kind.edit)
				newest, before := w.newest(), w.filesOfJob(t)
				r = w.goesOn(older)
				if e, _ := w.last(jobs.EventFailed); e.Checkpoint != newest || strings.Contains(r.said(), "cannot be restored here") {
					t.Errorf("it says %q", r.said())
				}
				kept := glob(w.work, "*.cucriu-*")
				for _, path := range kept {
					data, err := os.ReadFile(path)
					if base, _, _ := strings.Cut(filepath.Base(path), ".cucriu-"); err != nil || !strings.HasSuffix(before[base], string(data)) {
						t.Errorf("%s is not what was newer (%v)", path, err)
					}
				}
				if len(kept) != 2 {
					t.Errorf("kept: %v", kept)
				}
				w.finish(r)
				inOrder(t, w)
			})
		})
	}
}

// TestARestoreThatFailsTakesNothingFromTheFiles, whoever is killed meanwhile.
func TestARestoreThatFailsTakesNothingFromTheFiles(t *testing.T) {
	testenv.Parallel(t)
	for _, step := range []string{"restore.pre-restore", "restore.pre-resume", "restore.back.fill"} {
		t.Run(step, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				r := w.run()
				r.verified(1)
				w.ticks(2)
				r.killsAll()
				before := w.filesOfJob(t)
				for _, k := range []who{criuKilled, supervisorKilled, allKilled} {
					s := w.stopAt(step)
					r := w.runAs(s.host)
					s.await(r)
					r.signal(unix.SIGSTOP) // or it would try again
					w.kills(k)
					r.killsAll() // before anybody goes on: a job that is resumed writes its files
				}
				for _, name := range w.checkpoints() {
					damages[1].do(t, filepath.Join(w.dir, "checkpoints", name, "pages-1.img"))
				}
				w.run().ends(125, "was neither resumed nor started anew")
				w.sameFiles(t, before)
			})
		})
	}
	for _, kind := range unrestorable {
		t.Run(kind.name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newMixedWorld(t)
				w.flags = []string{"--every", "1s", "--keep", "1"}
				w.spoils(t, kind.edit)
				before := w.filesOfJob(t)
				w.run().ends(125, "was neither resumed nor started anew")
				w.sameFiles(t, before)
			})
		})
	}
}
