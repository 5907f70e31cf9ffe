package delta

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cucriu/internal/kit/pagemap"
)

// TestOnlyMemoryThatIsWholeInBothRoundsIsCompared: all of the rest is sent.
func TestOnlyMemoryThatIsWholeInBothRoundsIsCompared(t *testing.T) {
	const pages, changed = 1024, 3
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx     context.Context
		damage  func(earlier string) error
		largest uint64
		divided bool
		err     error
	}{
		"both are whole":               {largest: 1, divided: true},
		"nothing may be left there":    {largest: 0},
		"the migration is given up":    {largest: 1, ctx: ended, err: context.Canceled},
		"the earlier one is not there": {largest: 1, damage: func(earlier string) error { return os.Remove(filepath.Join(earlier, "pagemap-shmem-7.img")) }},
		"the earlier one has no pages": {largest: 1, damage: func(earlier string) error { return os.Remove(filepath.Join(earlier, "pages-3.img")) }},
		"the earlier one is cut off":   {largest: 1, damage: func(earlier string) error { return os.Truncate(filepath.Join(earlier, "pages-3.img"), 1<<20) }},
	} {
		t.Run(name, func(t *testing.T) {
			earlier, current := t.TempDir(), t.TempDir()
			content := make([]byte, pages*pagemap.PageSize())
			writeMemory(t, earlier, 3, pages, content)
			content[changed*pagemap.PageSize()]++
			writeMemory(t, current, 4, pages, content)
			if c.damage != nil {
				if err := c.damage(earlier); err != nil {
					t.Fatal(err)
				}
			}
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			d, err := Compare(c.ctx, filepath.Join(t.TempDir(), "delta"), "id", earlier, current, c.largest)
			if !errors.Is(err, c.err) {
				t.Fatalf("%v, want %v", err, c.err)
			}
			var replaced, parents []string
			if c.divided {
				replaced, parents = []string{"pagemap-shmem-7.img", "pages-4.img"}, []string{"pagemap-shmem-7.img", "pages-3.img"}
				info, err := os.Stat(filepath.Join(d.Dir, "pages-4.img"))
				if err != nil || info.Size() != int64(pagemap.PageSize()) {
					t.Errorf("one page has changed: %v, %v", info, err)
				}
			}
			if !slices.Equal(d.Replaced, replaced) || !slices.Equal(d.Parents, parents) || len(d.Links) > 0 {
				t.Errorf("%+v", d)
			}
		})
	}
}

// writeMemory writes shared memory as criu does.
func writeMemory(t *testing.T, dir string, id uint32, pages uint64, content []byte) {
	t.Helper()
	const present = 1 << 2
	m := pagemap.Map{PagesID: id, Entries: []pagemap.Entry{{Pages: pages, Flags: present}}}
	f, err := os.Create(filepath.Join(dir, "pagemap-shmem-7.img"))
	if err == nil {
		_, err = m.WriteTo(f)
	}
	if err := errors.Join(err, f.Close(), os.WriteFile(filepath.Join(dir, m.PagesName()), content, 0o600)); err != nil {
		t.Fatal(err)
	}
}
