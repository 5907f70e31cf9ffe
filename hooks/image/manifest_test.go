package image

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/criuutil/inject"
	"cucriu/criuutil/pages"
	"cucriu/cudackpt"
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
	if err := Clear(dir); err != nil {
		t.Fatal(err)
	}
	if err := Clear(dir); err != nil {
		t.Fatalf("remove a manifest that is not there: %v", err)
	}
}

func TestManifestRefusesWhatNoDumpWrote(t *testing.T) {
	for name, damage := range map[string]func(*Manifest){
		"another version":            func(m *Manifest) { m.Version = ManifestVersion + 1 },
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
		"more GPUs than there are":   func(m *Manifest) { m.Processes[0].GPUs = make([]cudackpt.GPU, maxGPUs+1) },
	} {
		m := goodManifest(t)
		damage(&m)
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseManifest(data); err == nil {
			t.Errorf("%s: accepted", name)
		}
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
		if _, err := ParseManifest([]byte(data)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for cut := range len(good) {
		if _, err := ParseManifest(good[:cut]); err == nil {
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

func FuzzParseManifest(f *testing.F) {
	good, err := json.Marshal(goodManifest(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := ParseManifest(data); err == nil && m.Validate() != nil {
			t.Fatalf("accepted what is not valid: %s", data)
		}
	})
}

func TestManifestMustBeAFileInAnImageDirectory(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a FIFO":           func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"a dangling link":  func(path string) error { return os.Symlink("nowhere", path) },
		"a socket":         func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"a device":         func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }, // zeros without end
		"larger than sane": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
	} {
		dir := t.TempDir()
		if err := put(filepath.Join(dir, ManifestName)); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadManifest(dir); err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), ManifestName) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadManifest("nowhere"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there passes for one without CUDA: %v", err)
	}
}
