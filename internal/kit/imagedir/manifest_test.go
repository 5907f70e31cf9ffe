package imagedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
)

func uuid(t testing.TB, text string) cudackpt.UUID {
	t.Helper()
	u, err := cudackpt.ParseUUID(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func goodManifest(t testing.TB) Manifest {
	a := uuid(t, "GPU-00000000-0000-0000-0000-00000000000a")
	b := uuid(t, "GPU-00000000-0000-0000-0000-00000000000b")
	return Manifest{
		Version: 1, Created: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), DriverVersion: "580.159.04", RootPID: 7,
		Processes: []Process{{
			PID: 8, Name: "python3", Stopped: true,
			GPUs:        []cudackpt.GPU{{UUID: a, Model: "NVIDIA H200", PCIBusID: "0000:41:00.0"}, {UUID: b, Model: "NVIDIA H200", PCIBusID: "0000:42:00.0", Minor: 1}},
			MemoryBytes: map[cudackpt.UUID]uint64{b: 1 << 30},
			Pages:       &pages.Listing{ID: "0123456789abcdef", Bytes: 1, IndexBytes: 4128, ShardBytes: []int64{4097}},
		}},
	}
}

func TestManifestSurvivesTheDisk(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadManifest(dir); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a folder without a manifest: %v", err)
	}
	want := goodManifest(t)
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := RemoveEarlier(dir); err != nil {
		t.Fatal(err)
	}
	if err := RemoveEarlier(dir); err != nil {
		t.Fatalf("remove a manifest that is not there: %v", err)
	}
}

func TestManifestRefusesWhatNoDumpWrote(t *testing.T) {
	for name, damage := range map[string]func(*Manifest){
		"another version": func(m *Manifest) { m.Version = latestVersion + 1 },
		"scheduling in an old version": func(m *Manifest) {
			m.Version, m.Scheduling = RewrittenVersion, []proc.Scheduling{{TID: 8, SlackNanos: 1}}
		},
		"threads of no process":      func(m *Manifest) { m.Parked = []inject.Parked{{Arch: runtime.GOARCH}} },
		"no driver":                  func(m *Manifest) { m.DriverVersion = "" },
		"a line of its own":          func(m *Manifest) { m.DriverVersion = "580\nall is well" },
		"a name that paints":         func(m *Manifest) { m.Processes[0].Name = "\x1b[2J" },
		"a model that paints":        func(m *Manifest) { m.Processes[0].GPUs[1].Model = "\x1b[2J" },
		"no root":                    func(m *Manifest) { m.RootPID = 0 },
		"no process":                 func(m *Manifest) { m.Processes = nil },
		"a pid twice":                func(m *Manifest) { m.Processes = append(m.Processes, m.Processes[0]) },
		"pid 0":                      func(m *Manifest) { m.Processes[0].PID = 0 },
		"a negative pid":             func(m *Manifest) { m.Processes[0].PID = -1 },
		"no GPU":                     func(m *Manifest) { m.Processes[0].GPUs = nil },
		"a GPU twice":                func(m *Manifest) { m.Processes[0].GPUs[1] = m.Processes[0].GPUs[0] },
		"a GPU without a UUID":       func(m *Manifest) { m.Processes[0].GPUs[0].UUID = cudackpt.UUID{} },
		"memory on an unseen GPU":    func(m *Manifest) { m.Processes[0].MemoryBytes[cudackpt.UUID{1}] = 1 },
		"pages outside of the image": func(m *Manifest) { m.Processes[0].Pages.ID = "../../../../../.." },
		"pages without an index":     func(m *Manifest) { m.Processes[0].Pages.IndexBytes = 0 },
		"pages in no shard":          func(m *Manifest) { m.Processes[0].Pages.ShardBytes = nil },
		"pages of another version":   func(m *Manifest) { m.Processes[0].Pages.Origins = []pages.Origin{{ID: "0123456789abcdef", PID: 8}} },
		"pages of another image": func(m *Manifest) {
			m.Version, m.Processes[0].Pages.Origins = RewrittenVersion, []pages.Origin{{ID: "../../../../../..", PID: 8}}
		},
		"pages of no process": func(m *Manifest) {
			m.Version, m.Processes[0].Pages.Origins = RewrittenVersion, []pages.Origin{{ID: "0123456789abcdef", PID: -8}}
		},
		"more shards than pages": func(m *Manifest) {
			m.Version, m.Processes[0].Pages.Origins = RewrittenVersion, []pages.Origin{{ID: "0123456789abcdef", PID: 8}, {ID: "0123456789abcdef", PID: 9}}
		},
		"more GPUs than there are": func(m *Manifest) { m.Processes[0].GPUs = make([]cudackpt.GPU, maxGPUs+1) },
	} {
		t.Run(name, func(t *testing.T) {
			m := goodManifest(t)
			damage(&m)
			data, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parseManifest(data); err == nil {
				t.Errorf("%s: accepted", name)
			}
		})
	}
	good, err := json.Marshal(goodManifest(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"an unknown field":  strings.Replace(string(good), `"version"`, `"surprise":1,"version"`, 1),
		"a second document": string(good) + "{}",
		"a MIG device":      strings.Replace(string(good), "GPU-", "MIG-", 1),
		"nothing":           "",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseManifest([]byte(data)); err == nil {
				t.Errorf("%s: accepted", name)
			}
		})
	}
	for cut := range len(good) {
		if _, err := parseManifest(good[:cut]); err == nil {
			t.Errorf("cut off after %d bytes: accepted", cut)
		}
	}
}

func TestManifestIsNotReadThroughALink(t *testing.T) {
	dir := t.TempDir()
	if err := goodManifest(t).Write(dir); err != nil {
		t.Fatal(err)
	}
	link := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, ManifestName), filepath.Join(link, ManifestName)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadManifest(link); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Fatalf("read through a symbolic link: %v", err)
	}
}

func parseManifest(data []byte) (Manifest, error) {
	m, _, err := manifestKind.Parse("x", data)
	return m, err
}

// FuzzParseManifest: nothing of a refused manifest can be used. An accepted one is the same
// after it is written again. It cannot lead out of the image directory, cannot send control
// characters to a terminal, and names no GPU or process that is not there.
func FuzzParseManifest(f *testing.F) {
	good := goodManifest(f)
	parked := goodManifest(f)
	parked.Version = ManifestVersion
	parked.StoppedOthers = []int{9}
	rewritten := goodManifest(f)
	rewritten.Version, rewritten.Processes[0].Pages.Origins = RewrittenVersion, []pages.Origin{{ID: "fedcba9876543210", PID: 9, Shard: 3}}
	for _, m := range []Manifest{good, parked, rewritten, {}} {
		data, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(bytes.Replace(data, []byte(`"pid":8`), []byte(`"pid":-8`), 1))
		f.Add(bytes.Replace(data, []byte("0123456789abcdef"), []byte("../../../../etc/"), 1))
		f.Add(bytes.ReplaceAll(data, []byte("00000000000b"), []byte("00000000000a")))
		f.Add(bytes.Replace(data, []byte(`00000000000b":`), []byte(`00000000000c":`), 1))
		f.Add(append(data, data...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(data)
		if err != nil {
			if diff := cmp.Diff(Manifest{}, m); diff != "" {
				t.Fatalf("refused (%v), and yet there is a manifest:\n%s", err, diff)
			}
			return
		}
		if again, err := parseManifest(append(bytes.Clone(data), "{}"...)); err == nil {
			t.Fatalf("accepted with something behind it: %v", again)
		}
		shown := []string{m.DriverVersion}
		for _, p := range m.Processes {
			shown = append(shown, p.Name)
			sees := make(map[cudackpt.UUID]int)
			for _, gpu := range p.GPUs {
				shown = append(shown, gpu.Model, gpu.PCIBusID)
				if sees[gpu.UUID]++; sees[gpu.UUID] > 1 {
					t.Fatalf("process %d sees %v twice", p.PID, gpu.UUID)
				}
			}
			for uuid := range p.MemoryBytes {
				if sees[uuid] == 0 {
					t.Fatalf("process %d has memory on %v, which it does not see", p.PID, uuid)
				}
			}
			if p.PID <= 0 || len(sees) == 0 {
				t.Fatalf("process %d sees %d GPUs", p.PID, len(sees))
			}
			if p.Pages != nil {
				for _, name := range p.Pages.Names(p.PID) {
					if filepath.Base(name) != name || !filepath.IsLocal(name) {
						t.Fatalf("the memory of process %d is in %q", p.PID, name)
					}
				}
			}
		}
		if text := strings.Join(shown, ""); strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text) {
			t.Fatalf("would show %q", shown)
		}
		written, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("cannot be written again: %v", err)
		}
		again, err := parseManifest(written)
		if diff := cmp.Diff(m, again, cmpopts.EquateEmpty(), cmp.Exporter(func(reflect.Type) bool { return true })); err != nil || diff != "" {
			t.Fatalf("written again as %s it is %v\n%s", written, err, diff)
		}
	})
}

func TestManifestMustBeAFileInAnImageDirectory(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a FIFO":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"a dangling link":  func(path string) error { return os.Symlink("nowhere", path) },
		"a socket":         func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"a device":         func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }, // /dev/zero never ends
		"larger than sane": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := put(filepath.Join(dir, ManifestName)); err != nil {
				t.Fatal(err)
			}
			if _, err := ReadManifest(dir); err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), ManifestName) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	if _, err := ReadManifest("nowhere"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there passes for one without CUDA: %v", err)
	}
}

// TestAManifestNeedsEveryProcessInCriusImages: it may be another dump's. An image that is streamed has none.
func TestAManifestNeedsEveryProcessInCriusImages(t *testing.T) {
	m := goodManifest(t)
	for name, test := range map[string]struct {
		files []string
		whole bool
	}{
		"streamed":        {nil, true},
		"all of them":     {[]string{"inventory.img", "core-7.img", "core-8.img"}, true},
		"without a child": {[]string{"inventory.img", "core-7.img"}, false},
		"without a root":  {[]string{"inventory.img", "core-8.img"}, false},
	} {
		dir := t.TempDir()
		for _, file := range test.files {
			must(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		}
		if err := m.MatchImages(dir); (err == nil) != test.whole {
			t.Errorf("%s: %v", name, err)
		}
	}
}
