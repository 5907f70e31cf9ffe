package store

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/pagemap"
)

// TestMemoryThatIsDamagedIsNotShared: it is said, and all is stored again.
func TestMemoryThatIsDamagedIsNotShared(t *testing.T) {
	for name, damage := range map[string]func(path string, data string) error{
		"a page": func(path, data string) error { return flip(path, data, len(data)/2) },
		"its end": func(path, data string) error {
			return os.Truncate(path, int64(len(data)-1))
		},
		"gone": func(path, _ string) error { return os.Remove(path) },
	} {
		for _, file := range []string{"pages-1.img", "pagemap-7.img"} {
			t.Run(name+" of "+file, func(t *testing.T) {
				s := openStore(t, quickDir(t))
				p := newProcess("7", 1, 1, 4)
				a := publishMemory(t, s, p)
				must(t, damage(filepath.Join(a.Dir, file), content(t, a.Dir)[file]))
				p = p.with(1, 3)
				b := publishMemory(t, s, p)
				wantMemory(t, b, 0, p)
				if len(b.Warnings) != 1 || !strings.Contains(b.Warnings[0], a.Name) || !strings.Contains(b.Warnings[0], file) {
					t.Errorf("warnings %q", b.Warnings)
				}
				must(t, s.Verify(t.Context(), b, 1, nil))
			})
		}
	}
}

// TestAnImageThatIsNotUnderstoodIsStoredAsItIs, whatever is in it.
func TestAnImageThatIsNotUnderstoodIsStoredAsItIs(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string){
		"two pagemaps of one file": func(t *testing.T, dir string) {
			data, err := os.ReadFile(filepath.Join(dir, "pagemap-7.img"))
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "pagemap-8.img"), data, 0o600))
		},
		"a pagemap that is cut off": func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "pagemap-7.img"), 30)) },
		"an empty pagemap":          func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "pagemap-7.img"), 0)) },
		"too few pages":             func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "pages-1.img"), 3<<20)) },
		"no pages":                  func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "pages-1.img"))) },
		"no areas":                  func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "mm-7.img"))) },
		"areas that are damaged":    func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, "mm-7.img"), 20)) },
		"an area that ends before it begins": func(t *testing.T, dir string) {
			bad := area(100, 0, 3, unix.MAP_PRIVATE|unix.MAP_HUGETLB, 1)
			must(t, os.WriteFile(filepath.Join(dir, "mm-7.img"), mmImage(t, bad), 0o600))
		},
		"a parent of its own": func(t *testing.T, dir string) {
			must(t, os.Mkdir(filepath.Join(dir, parentDir), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, parentDir, "pages-1.img"), []byte("x"), 0o600))
		},
		"a parent without its directory": func(t *testing.T, dir string) {
			writePagemap(t, filepath.Join(dir, "pagemap-7.img"), pagemap.Map{PagesID: 1, Entries: []pagemap.Entry{
				{Address: firstRAM * page, Pages: 1023, Flags: 4}, {Address: (firstRAM + 1023) * page, Pages: 1, Flags: pagemap.InParent},
			}})
			must(t, os.Truncate(filepath.Join(dir, "pages-1.img"), 1023*page))
		},
		"far too many pages": func(t *testing.T, dir string) {
			writePagemap(t, filepath.Join(dir, "pagemap-7.img"), pagemap.Map{PagesID: 1, Entries: []pagemap.Entry{{Address: page, Pages: 1 << 31, Flags: 4}}})
		},
		"a long pagemap": func(t *testing.T, dir string) {
			must(t, os.Truncate(filepath.Join(dir, "pagemap-7.img"), 17<<20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, quickDir(t))
			p := newProcess("7", 1, 1, 4)
			publishMemory(t, s, p)
			staged := stageMemory(t, filepath.Join(s.dir, "image"), p)
			change(t, staged)
			c, err := s.Publish(t.Context(), staged, goodInfo(t))
			must(t, err)
			got, want := content(t, c.Dir), content(t, staged)
			delete(got, recordName)
			if !maps.Equal(got, want) {
				t.Errorf("%q is stored, want %q", sortedNames(got), sortedNames(want))
			}
			must(t, s.Verify(t.Context(), c, 1, nil))
		})
	}
}

func TestWithoutLinksAllMemoryIsWritten(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	p := newProcess("7", 1, 1, 4)
	a := publishMemory(t, s, p)
	pages := filepath.Join(a.Dir, "pages-1.img")
	setImmutable(t, pages, true)
	defer setImmutable(t, pages, false)
	p = p.with(1, 4)
	wantMemory(t, publishMemory(t, s, p), 0, p)
}

// TestABaseThatIsRemovedMeanwhileIsNotNeeded: a person may remove any checkpoint at any time.
func TestABaseThatIsRemovedMeanwhileIsNotNeeded(t *testing.T) {
	s := openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	a := publishMemory(t, s, p)
	staged := stageMemory(t, filepath.Join(s.dir, "image"), p.with(1, 3))
	s.interrupt = func(step string) error {
		if step == stepLink {
			must(t, os.RemoveAll(a.Dir))
		}
		return nil
	}
	c, err := s.Publish(t.Context(), staged, goodInfo(t))
	must(t, err)
	wantMemory(t, c, 0, p.with(1, 3))
	must(t, s.Verify(t.Context(), c, 1, nil))
	if now := list(t, s); len(now) != 1 {
		t.Errorf("checkpoints %q", names(now))
	}
}

func TestADamagedParentIsNamed(t *testing.T) {
	s := openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	publishMemory(t, s, p)
	c := publishMemory(t, s, p.with(1, 3))
	for name, data := range content(t, c.Dir) {
		if !strings.HasPrefix(name, parentDir) {
			continue
		}
		path := filepath.Join(c.Dir, name)
		must(t, os.Remove(path)) // the other name keeps its content
		for _, damage := range []func() error{
			func() error { return nil },
			func() error { return os.WriteFile(path, []byte(data[1:]), 0o600) },
			func() error { return flip(path, data, len(data)/2) },
		} {
			must(t, damage())
			wantError(t, s.Check(t.Context(), c), name)
			wantError(t, s.Verify(t.Context(), c, 1, nil), name)
		}
		must(t, os.WriteFile(path, []byte(data), 0o600))
		must(t, s.Check(t.Context(), list(t, s)[0]))
	}
	wantWhole(t, s, "000001 000002")
}

func TestADifferenceArrivesElsewhere(t *testing.T) {
	from, to := openStore(t, quickDir(t)), openStore(t, quickDir(t))
	p := newProcess("7", 1, 1, 4)
	publishMemory(t, from, p)
	q := newProcess("8", 1, 2, 2)
	p = p.with(2, 3)
	publishMemory(t, from, p, q)
	publishMemory(t, from, p.with(2, 4), q.with(1, 5))
	listed, err := from.List(all)
	must(t, err)
	var sent int64
	for _, l := range listed {
		n, err := sendTo(t, from, to, l)
		must(t, err)
		sent += n
	}
	if sent > 6<<20+200<<10 {
		t.Errorf("%d bytes were sent", sent)
	}
	wantWhole(t, to, "000001 000002 000003")
	there := list(t, to)
	wantMemory(t, there[2], 1022+511, p.with(2, 4), q.with(1, 5))
	r := p.with(2, 9)
	wantMemory(t, publishMemory(t, to, r), 1022, r) // and goes on there
}

// TestAFullDiskHarmsNoDifference fills the disk while a difference is written.
func TestAFullDiskHarmsNoDifference(t *testing.T) {
	disk := onTmpfs(t, "size=16m")
	s := openStore(t, filepath.Join(disk, "job"))
	p := newProcess("7", 1, 1, 8)
	publishMemory(t, s, p)
	staged := stageMemory(t, filepath.Join(t.TempDir(), "image"), p.with(1, every(2, 2048)...))
	fill, err := os.Create(filepath.Join(disk, "fill"))
	must(t, err)
	_, err = io.Copy(fill, io.LimitReader(zeros{}, 5<<20))
	must(t, err)
	must(t, fill.Close())
	if _, err := s.Publish(t.Context(), staged, goodInfo(t)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v", err)
	}
	wantWhole(t, s, "000001")
	entries, err := os.ReadDir(s.path(CheckpointsDir))
	must(t, err)
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != "000001" }) {
		t.Errorf("left over: %v", entries)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
