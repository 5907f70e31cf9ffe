package imagedir

import (
	"context"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
)

// TestPiecesHaveTheChecksumOfTheWhole: several threads read one file.
func TestPiecesHaveTheChecksumOfTheWhole(t *testing.T) {
	data := make([]byte, 4000)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	want := crc32.Checksum(data, durable.Castagnoli)
	for range 200 {
		cut := random.IntN(len(data) + 1)
		first, second := crc32.Checksum(data[:cut], durable.Castagnoli), crc32.Checksum(data[cut:], durable.Castagnoli)
		if got := shift(first, int64(len(data)-cut)) ^ second; got != want {
			t.Fatalf("cut at %d: %08x, want %08x", cut, got, want)
		}
	}
	dir := t.TempDir()
	large := make([]byte, 2*pieceBytes+5)
	copy(large[pieceBytes-2000:], data)
	must(t, os.WriteFile(filepath.Join(dir, "pages-1.img"), large, 0o600))
	files, err := sumImage(t.Context(), dir)
	must(t, err)
	wanted := []File{{"pages-1.img", int64(len(large)), crc32.Checksum(large, durable.Castagnoli)}}
	if !slices.Equal(files, wanted) {
		t.Errorf("%+v, want %+v", files, wanted)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// summed makes an image with checksums, and returns what is in it.
func summed(t *testing.T) (string, map[string]string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	partial, err := NewPartial(dir, func(string) bool { return false })
	must(t, err)
	defer partial.Close()
	content := map[string]string{
		"pages-1.img": "the memory", "core-7.img": "the registers", "empty.img": "", ManifestName: "{}",
		"cucriu-timeline.json": "may be lost", "cucriu-options.json": "may be removed",
		"cucriu-pages-0123456789abcdef-7-0.img": "has checksums of its own",
	}
	for name, data := range content {
		must(t, os.WriteFile(filepath.Join(partial.Dir(), name), []byte(data), 0o600))
	}
	must(t, partial.Publish(true))
	return dir, content
}

func TestEachFileOfCriuAndTheManifestHaveChecksums(t *testing.T) {
	dir, content := summed(t)
	must(t, Open(dir).CheckSums(t.Context()))
	files, err := ReadSums(dir)
	must(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	if want := []string{"core-7.img", ManifestName, "empty.img", "pages-1.img"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	for how, damage := range map[string]func(path, data string) error{
		"another bit": func(path, data string) error {
			return os.WriteFile(path, []byte(data[:len(data)-1]+string(data[len(data)-1]^1)), 0o600)
		},
		"cut off": func(path, data string) error { return os.Truncate(path, int64(len(data)-1)) },
		"longer":  func(path, data string) error { return os.WriteFile(path, []byte(data+"x"), 0o600) },
		"endless": func(path, _ string) error { return os.Truncate(path, 1<<40) },
		"removed": func(path, _ string) error { return os.Remove(path) },
		"renamed": func(path, _ string) error { return os.Rename(path, path+".img") },
		"a link": func(path, _ string) error {
			return errors.Join(os.Rename(path, path+".away"), os.Symlink(filepath.Base(path)+".away", path))
		},
		"a FIFO": func(path, _ string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"a device": func(path, _ string) error {
			return errors.Join(os.Remove(path), unix.Mknod(path, unix.S_IFCHR|0o600, 0x105))
		},
	} {
		for _, name := range []string{"core-7.img", ManifestName, "pages-1.img"} {
			path := filepath.Join(dir, name)
			must(t, damage(path, content[name]))
			damaged := new(FileError)
			if err := Open(dir).CheckSums(t.Context()); !errors.As(err, &damaged) || damaged.Name != name {
				t.Errorf("%s, %s: %v", name, how, err)
			}
			must(t, os.RemoveAll(path))
			must(t, os.WriteFile(path, []byte(content[name]), 0o600))
		}
	}
	moved := filepath.Join(filepath.Dir(dir), "moved")
	must(t, os.Rename(dir, moved))
	must(t, Open(moved).CheckSums(t.Context()))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := Open(moved).CheckSums(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	must(t, RemoveEarlier(moved))
	if _, err := ReadSums(moved); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a dump into a directory that is used again leaves the checksums of an earlier one: %v", err)
	}
	must(t, Open(moved).CheckSums(t.Context())) // an image of an earlier version
}

func TestChecksumsThatNoDumpWroteAreRefused(t *testing.T) {
	dir, _ := summed(t)
	path := filepath.Join(dir, SumsName)
	good, err := os.ReadFile(path)
	must(t, err)
	sealed := func(files ...File) func() error {
		data, err := sumsKind.Encode(files)
		return func() error { return errors.Join(err, os.WriteFile(path, data, 0o600)) }
	}
	for name, write := range map[string]func() error{
		"none":      sealed(),
		"twice":     sealed(File{Name: "core-7.img"}, File{Name: "core-7.img"}),
		"outside":   sealed(File{Name: "../core-7.img"}),
		"absolute":  sealed(File{Name: "/etc/core-7.img"}),
		"below":     sealed(File{Name: "parent/core-7.img"}),
		"no image":  sealed(File{Name: "shadow"}),
		"paints":    sealed(File{Name: "\x1b[2J.img"}),
		"negative":  sealed(File{Name: "core-7.img", Bytes: -1}),
		"too large": sealed(File{Name: "a.img", Bytes: 1 << 62}, File{Name: "b.img", Bytes: 1 << 62}),
		"another bit": func() error {
			return os.WriteFile(path, []byte(strings.Replace(string(good), `"bytes": 10`, `"bytes": 11`, 1)), 0o600)
		},
		"a version": func() error {
			return os.WriteFile(path, []byte(strings.Replace(string(good), `"version": 1`, `"version": 2`, 1)), 0o600)
		},
		"nothing": func() error { return os.WriteFile(path, nil, 0o600) },
		"endless": func() error { return os.Truncate(path, 1<<40) },
		"a FIFO":  func() error { return unix.Mkfifo(path, 0o600) },
		"a link":  func() error { return os.Symlink("core-7.img", path) },
	} {
		must(t, os.RemoveAll(path))
		must(t, os.WriteFile(path, good, 0o600))
		if name == "a FIFO" || name == "a link" {
			must(t, os.Remove(path))
		}
		must(t, write())
		err := Open(dir).CheckSums(t.Context())
		if err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), SumsName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
