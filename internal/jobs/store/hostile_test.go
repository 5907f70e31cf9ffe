package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/records"
)

func goodRecord(t testing.TB) record {
	return record{
		Info: goodInfo(t), Generation: 3, NewBytes: 5,
		Files: []File{{Name: "core-7.img", Bytes: 5, CRC32C: 7}, {Name: "files/model.bin", Bytes: 1}},
	}
}

// seal returns a record that has the right checksum, whatever is in it.
func seal(t testing.TB, inner []byte) []byte {
	t.Helper()
	data, err := records.Kind[json.RawMessage]{Version: recordKind.Version, Key: recordKind.Key}.Encode(inner)
	if err != nil { // it is no JSON
		return inner
	}
	return data
}

func TestARecordThatNobodyWroteIsRefused(t *testing.T) {
	for name, damage := range map[string]func(*record){
		"no file":             func(r *record) { r.Files = nil },
		"no name":             func(r *record) { r.Files[0].Name = "" },
		"the directory":       func(r *record) { r.Files[0].Name = "." },
		"outside":             func(r *record) { r.Files[0].Name = "../../../etc/shadow" },
		"outside on a detour": func(r *record) { r.Files[0].Name = "files/../../x" },
		"inside on a detour":  func(r *record) { r.Files[0].Name = "files/../x" },
		"an absolute name":    func(r *record) { r.Files[0].Name = "/etc/shadow" },
		"a NUL":               func(r *record) { r.Files[0].Name = "core\x00.img" },
		"a name that paints":  func(r *record) { r.Files[0].Name = "\x1b[2J" },
		"the record itself":   func(r *record) { r.Files[0].Name = recordName },
		"a mark":              func(r *record) { r.Files[0].Name = verifiedName },
		"a name twice":        func(r *record) { r.Files[1].Name = r.Files[0].Name },
		"a negative size":     func(r *record) { r.Files[0].Bytes = -1 },
		"too many bytes":      func(r *record) { r.Files[0].Bytes, r.Files[1].Bytes = 1<<62, 1<<62 },
		"more new than all":   func(r *record) { r.NewBytes = 7 },
		"a negative clock":    func(r *record) { r.Clocks.Boottime = -1 },
		"no root":             func(r *record) { r.RootPID = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			r := goodRecord(t)
			damage(&r)
			inner, err := json.Marshal(r)
			must(t, err)
			if _, _, err := recordKind.Parse("x", seal(t, inner)); err == nil {
				t.Error("accepted")
			}
		})
	}
	good, err := goodRecord(t).encode()
	must(t, err)
	if _, _, err := recordKind.Parse("x", good); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"another version":   strings.Replace(string(good), `"version": 1`, `"version": 2`, 1),
		"another clock":     strings.Replace(string(good), `"monotonic_ns": 5`, `"monotonic_ns": 4`, 1),
		"a second document": string(good) + "{}",
		"an unknown field":  string(seal(t, bytes.Replace(mustJSON(t, goodRecord(t)), []byte(`"files"`), []byte(`"surprise":1,"files"`), 1))),
		"nothing":           "",
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := recordKind.Parse("x", []byte(data)); err == nil {
				t.Error("accepted")
			}
		})
	}
	for cut := range len(good) {
		if _, _, err := recordKind.Parse("x", good[:cut]); err == nil {
			t.Errorf("cut off after %d bytes: accepted", cut)
		}
	}
}

func mustJSON(t testing.TB, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	must(t, err)
	return data
}

// FuzzParseRecord: an accepted record leads nowhere but into its directory, paints nothing on
// a terminal, and is the same after it is written again.
func FuzzParseRecord(f *testing.F) {
	good, err := goodRecord(f).encode()
	must(f, err)
	f.Add(good, false)
	inner := mustJSON(f, goodRecord(f))
	f.Add(inner, true)
	f.Add(bytes.Replace(inner, []byte("core-7.img"), []byte("../../x"), 1), true)
	f.Add(bytes.Replace(inner, []byte("core-7.img"), []byte("files/model.bin"), 1), true)
	f.Add(bytes.Replace(inner, []byte("python3"), []byte("\x1b[2J"), 1), true)
	f.Add(bytes.Replace(inner, []byte(`"bytes":5`), []byte(`"bytes":9223372036854775807`), 1), true)
	f.Add([]byte(`{"version":1,"crc32c":0,"checkpoint":null}`), false)
	f.Fuzz(func(t *testing.T, data []byte, sealIt bool) {
		if sealIt {
			data = seal(t, data)
		}
		r, sum, err := recordKind.Parse("x", data)
		if err != nil {
			if diff := cmp.Diff(record{}, r, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" || sum != 0 {
				t.Fatalf("refused (%v), and yet there is a record:\n%s", err, diff)
			}
			return
		}
		shown := []string{r.Reason, r.Command, r.Host, r.Kernel, r.Driver}
		for _, gpu := range r.GPUs {
			shown = append(shown, gpu.Model, gpu.PCIBusID)
		}
		var total int64
		for _, file := range r.Files {
			shown = append(shown, file.Name)
			if !filepath.IsLocal(file.Name) || filepath.Clean(file.Name) != file.Name || file.Name == "." || file.Bytes < 0 {
				t.Fatalf("a file is %+v", file)
			}
			if total += file.Bytes; total < 0 {
				t.Fatal("more bytes than there can be")
			}
		}
		if text := strings.Join(shown, ""); strings.ContainsFunc(text, unicode.IsControl) {
			t.Fatalf("would show %q", shown)
		}
		written, err := r.encode()
		must(t, err)
		again, _, err := recordKind.Parse("x", written)
		if diff := cmp.Diff(r, again, cmpopts.EquateEmpty(), cmp.Exporter(func(reflect.Type) bool { return true })); err != nil || diff != "" {
			t.Fatalf("written again: %v\n%s", err, diff)
		}
	})
}

// TestAHostileCheckpointHarmsNoOther puts what is no checkpoint beside one.
func TestAHostileCheckpointHarmsNoOther(t *testing.T) {
	for name, put := range map[string]func(t *testing.T, dir string) error{
		"an empty directory": func(_ *testing.T, dir string) error { return os.Mkdir(dir, 0o700) },
		"a file":             func(_ *testing.T, dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a link to a checkpoint": func(_ *testing.T, dir string) error {
			return os.Symlink("000001", dir)
		},
		"a record that is a FIFO": func(_ *testing.T, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), unix.Mkfifo(filepath.Join(dir, recordName), 0o600))
		},
		"a record that is a link": func(_ *testing.T, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink("../000001/"+recordName, filepath.Join(dir, recordName)))
		},
		"a record without end": func(_ *testing.T, dir string) error {
			path := filepath.Join(dir, recordName)
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		},
		"a record of other files": func(t *testing.T, dir string) error {
			r := goodRecord(t)
			r.Files[0].Name = "../000001/" + recordName
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, recordName), seal(t, mustJSON(t, r)), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, quickDir(t))
			good := publish(t, s, 1, newMemory(1, 2))
			must(t, put(t, s.checkpointDir("000002")))
			all := list(t, s)
			if len(all) != 2 || all[0].Err != nil || all[1].Err == nil || all[1].Name != "000002" || len(all[1].Files) > 0 {
				t.Fatalf("listed as %+v", all)
			}
			must(t, s.Verify(t.Context(), good, 1, nil))
			for _, err := range []error{s.Check(t.Context(), all[1]), s.Verify(t.Context(), all[1], 1, nil)} {
				wantError(t, err, "000002")
			}
			if next := publish(t, s, 3, newMemory(3, 2)); next.Name != "000003" {
				t.Errorf("the next is %s", next.Name)
			}
			must(t, s.Remove("000002"))
			wantWhole(t, s, "000001 000003")
		})
	}
}

// TestALinkInsideACheckpointIsNotFollowed: os.Root keeps to the directory, but follows links
// within it.
func TestALinkInsideACheckpointIsNotFollowed(t *testing.T) {
	s := openStore(t, quickDir(t))
	c := publish(t, s, 1, newMemory(1, 2))
	must(t, os.Rename(filepath.Join(c.Dir, "files"), filepath.Join(c.Dir, "away")))
	must(t, os.Symlink(t.TempDir(), filepath.Join(c.Dir, "files")))
	wantError(t, s.Check(t.Context(), c), "files/model.bin")
}
