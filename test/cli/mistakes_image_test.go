package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/hooks/image"
	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/twice"
	"cucriu/internal/testenv"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// damaged copies an image and changes the copy.
func (b *bench) damaged(t *testing.T, name string, damage func(dir string) error) string {
	t.Helper()
	testenv.Copy(t, b.path("images"), b.path(name))
	if err := damage(b.path(name)); err != nil {
		t.Fatal(err)
	}
	return name
}

// dumped dumps a job and ends it.
func (b *bench) dumped(t *testing.T, job *testenv.Job) {
	t.Helper()
	if stdout, stderr, status := b.run(t, "dump", "-t", job.Root(), "-D", "images"); status != 0 {
		t.Fatalf("%s%s", stdout, stderr)
	}
	testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
}

func TestMistakesAboutWhatToRestore(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		b.dumped(t, other)
		b.write(t, "file", "")
		b.write(t, "foreign/precious", "of somebody else's")
		if err := os.Mkdir(b.path("empty"), 0o700); err != nil {
			t.Fatal(err)
		}
		without := func(name, pattern string) string {
			return b.damaged(t, name, func(dir string) error {
				files, err := filepath.Glob(filepath.Join(dir, pattern))
				for _, file := range files {
					err = os.Remove(file)
				}
				return err
			})
		}
		optionless := b.damaged(t, "optionless", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, image.OptionsName), []byte("{"), 0o600)
		})
		linked := b.damaged(t, "linked", func(dir string) error {
			name := filepath.Join(dir, "pages-1.img")
			return errors.Join(os.Rename(name, b.path("pages")), os.Symlink(b.path("pages"), name))
		})
		const damagedOptions = "is damaged (unexpected end of JSON input): copy the image again from its source"
		restore := func(dir string, more ...string) []string { return append([]string{"restore", "-D", dir}, more...) }
		b.make(t,
			mistake{"nothing", restore("nowhere"), refused, "image directory " + b.path("nowhere") + " does not exist: name an image directory"},
			mistake{"a file", restore("file"), refused, "not a directory: name an image directory"},
			mistake{"an empty directory", restore("empty"), refused, b.path("empty") + " is empty: name an image directory"},
			mistake{"a foreign directory", restore("foreign"), refused, "neither a criu image (inventory.img) nor a cucriu manifest is in "},
			mistake{"a part of an image", restore(without("partial", "core-*.img")), refused, "copy the image again from its source"},
			mistake{"no GPU state", restore(without("stateless", "cucriu-pages-*")), refused, "copy the image again from its source"},
			mistake{"a file elsewhere", restore(linked), refused, ": image: pages-1.img: not a regular file: "},
			mistake{"check of a file elsewhere", []string{"check", "-D", linked}, refused, "1 blocking finding: image"},
			mistake{"no tree", restore(without("treeless", "pstree.img")), refused, "copy the image again"},
			mistake{"no inventory", restore(without("uncounted", "inventory.img")), refused, "uncounted/inventory.img is missing: the image is incomplete: copy the image again from its source"},
			mistake{"damaged options", restore(optionless), refused, damagedOptions},
			mistake{"verify of damaged options", []string{"verify", optionless}, 1, damagedOptions},
			mistake{"check without inventory", []string{"check", "-D", "uncounted"}, refused, "1 blocking finding: image"},
			mistake{"verify without inventory", []string{"verify", "uncounted"}, 1, "uncounted/inventory.img is missing: the image is incomplete: copy the image again from its source"},
			mistake{"inspect without inventory", []string{"inspect", "uncounted"}, refused, "uncounted/inventory.img is missing: the image is incomplete: copy the image again from its source"},
			mistake{"map without manifest", []string{"map", "-D", without("unmanned", "cucriu.json")}, refused, "unmanned/cucriu.json is missing: the image is incomplete: copy the image again from its source"},
			mistake{"map of nothing", []string{"map", "-D", "nowhere"}, refused, "nowhere does not exist: name an image directory"},
			mistake{"map of an empty directory", []string{"map", "-D", "empty"}, refused, "empty is empty: name an image directory"},
			mistake{"inspect of a file", []string{"inspect", "file"}, refused, "not a directory: name an image directory"},
			mistake{"inspect of a foreign directory", []string{"inspect", "foreign"}, refused, "neither a criu image"},
			mistake{"check of an empty directory", []string{"check", "-D", "empty"}, refused, "1 blocking finding: image"},
			mistake{"timeline of a foreign directory", []string{"inspect", "--timeline", "foreign"}, refused, "it is not an image directory"},
		)
		locked, err := job.LockStart(image.Open(b.path("images")), twice.Start{})
		if err != nil {
			t.Fatal(err)
		}
		b.make(t, mistake{"while another one restores it", restore("images"), refused, b.path("images") + ": another restore of this image is at work"})
		locked.Close()
		if stdout, stderr, status := b.run(t, "restore", "-D", "images"); status != 0 {
			t.Fatalf("the image, after all that: %s%s", stdout, stderr)
		}
		other.Runs()
		taken := "pid-taken: process " + other.Root() + " (cudawork): is the job itself, which was restored from this image at "
		b.make(t,
			mistake{"twice", restore("images"), refused, taken},
			mistake{"twice, relative", restore("./images/"), refused, "and runs: nothing is left to do; to restore the image once more, end the job first"},
			mistake{"check of what still runs", []string{"check", "-D", "images"}, refused, "1 blocking finding: pid-taken"},
		)
		if stdout, stderr, status := b.run(t, "dump", "-t", other.Root(), "-D", "left", "-R"); status != 0 {
			t.Fatalf("%s%s", stdout, stderr)
		}
		b.make(t, mistake{"beside the job that the dump left running", restore("left"), refused, "is the job itself, which the dump at "})
		other.Runs()
	})
}

// TestMistakesAboutTheMap: a map that cannot be read is wrong usage, one that cannot be met is
// refused.
func TestMistakesAboutTheMap(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		other := b.Start(1, "--gpus", "1")
		b.dumped(t, other)
		uuid := b.UUIDs()
		for _, test := range []struct {
			name, gpus string
			status     int
			says       string
		}{
			{"unknown key of a pair", "{map: [{form: {index: 0}, to: {index: 1}}]}", 2, `map[0]: unknown field "form"`},
			{"unknown key of a GPU", "{map: [{from: {uid: 0}, to: {index: 1}}]}", 2, `map[0].from: unknown field "uid"`},
			{"unknown key of gpus", "{maps: []}", 2, `unknown field "maps"`},
			{"no UUID", "{map: [{from: GPU-xyz, to: {index: 1}}]}", 2, "GPU-xyz"},
			{"half a UUID", "{map: [{from: " + uuid[0][:20] + ", to: {index: 1}}]}", 2, uuid[0][:20]},
			{"negative index", "{map: [{from: {index: -1}, to: {index: 1}}]}", 2, "-1"},
			{"no target", "{map: [{from: {index: 0}}]}", 2, "to"},
			{"wrong policy", "{unmapped: maybe}", 2, "use fill or error"},
			{"the same GPU twice", "{map: [{from: {index: 0}, to: {index: 0}}, {from: {index: 0}, to: {index: 1}}]}", refused, "contradict each other: both map the job's GPU-"},
			{"two onto one", "{map: [{from: {index: 0}, to: {index: 1}}, {from: {index: 1}, to: {index: 1}}]}", refused, "contradict each other: both map to GPU-"},
			{"a GPU that is not here", "{map: [{from: {index: 1}, to: {index: 7}}]}", refused, "there is no GPU with index 7 here: cucriu gpus lists 2 GPUs"},
			{"not all are named", "{map: [{from: {index: 1}, to: {index: 0}}], unmapped: error}", refused, "add a rule for each"},
		} {
			b.Setenv("CUCRIU_CONFIG", b.Config("version: 1\ngpus: "+test.gpus+"\n"))
			b.make(t,
				mistake{test.name + ", restore", []string{"restore", "-D", "images"}, test.status, test.says},
				mistake{test.name + ", map", []string{"map", "-D", "images"}, test.status, test.says},
			)
		}
		b.Setenv("CUCRIU_CONFIG", b.Config("version: 1\n"))
		b.make(t,
			mistake{"a GPU that the job did not see, restore", []string{"restore", "-D", "images", "--map", "7=0"}, refused, "gpu-map: --map: the job saw 2 GPUs, there is no index 7"},
			mistake{"a GPU that the job did not see, map", []string{"map", "-D", "images", "--map", "7=0"}, refused, "--map: the job saw 2 GPUs, there is no index 7"},
			mistake{"without criu", []string{"restore", "-D", "images", "--criu", "/nonexistent"}, refused, "refused, nothing was touched: criu-missing: "},
		)
		for name, change := range map[string]func(path string) error{
			"can be written by its group or by others": func(path string) error { return os.Chmod(path, 0o666) },
			"belongs to user 12345":                    func(path string) error { return os.Chown(path, 12345, -1) },
			"there is no such file":                    os.Remove,
		} {
			path := b.Config("version: 1\n")
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			b.Setenv("CUCRIU_CONFIG", path)
			b.make(t, mistake{"file that " + name, []string{"restore", "-D", "images"}, 2, name})
		}
		b.Setenv("CUCRIU_CONFIG", b.Config("version: 1\n"))
		if stdout, stderr, status := b.run(t, "restore", "-D", "images"); status != 0 {
			t.Fatalf("the image, after all that: %s%s", stdout, stderr)
		}
		other.Runs()
	})
}
