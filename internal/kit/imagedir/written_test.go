package imagedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cucriu/internal/kit/pages"
)

// TestWhatWasWrittenIsStillThere when criu asks whether to end the job.
func TestWhatWasWrittenIsStillThere(t *testing.T) {
	copied := func(path string) error { // the same content in another file
		data, err := os.ReadFile(path)
		return errors.Join(err, os.Rename(path, path+".old"), os.WriteFile(path, data, 0o600))
	}
	m := goodManifest(t)
	var state string
	for name, test := range map[string]struct {
		change func(dir string) error
		whole  bool
	}{
		"as it was written":     {func(string) error { return nil }, true},
		"no manifest":           {func(dir string) error { return os.Remove(filepath.Join(dir, ManifestName)) }, false},
		"another manifest":      {func(dir string) error { other := goodManifest(t); other.RootPID++; return other.Write(dir) }, false},
		"another file of state": {func(dir string) error { return copied(filepath.Join(dir, state)) }, false},
		"no file of state":      {func(dir string) error { return os.Remove(filepath.Join(dir, state)) }, false},
		"an image of criu less": {func(dir string) error { return os.Remove(filepath.Join(dir, "mm-8.img")) }, false},
		"another directory": {func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.CopyFS(dir, os.DirFS(dir+".old")))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "image")
			must(t, os.Mkdir(dir, 0o700))
			w, err := pages.Create(dir, "0123456789abcdef", 8, 1)
			must(t, err)
			defer w.Close()
			listing, err := w.Finish()
			must(t, err)
			m.Processes[0].Pages, state = &listing, listing.Names(8)[0]
			must(t, m.Write(dir))
			for _, file := range []string{"inventory", "pstree", "core-8", "mm-8", "pagemap-8"} {
				must(t, os.WriteFile(filepath.Join(dir, file+".img"), nil, 0o600))
			}
			written, err := NoteWritten(dir, []*pages.Writer{w})
			must(t, err)
			held, err := os.Open(dir) // criu's own descriptor
			must(t, err)
			defer held.Close()
			must(t, test.change(dir))
			if err := written.CheckWhole(fmt.Sprintf("/proc/self/fd/%d", held.Fd()), dir, false); (err == nil) != test.whole {
				t.Errorf("whole %v, want %v: %v", err == nil, test.whole, err)
			}
		})
	}
}
