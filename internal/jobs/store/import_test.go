package store

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// sendTo copies what is listed as a migration does, and imports it. It returns how many bytes went.
func sendTo(t *testing.T, from, to *Store, l Listed) (int64, error) {
	t.Helper()
	dir, err := os.MkdirTemp(to.dir, ".arriving-*")
	must(t, err)
	defer os.RemoveAll(dir)
	var sent int64
	for i, f := range l.Files {
		if f.SameAs != "" {
			continue
		}
		source, err := os.Open(filepath.Join(from.checkpointDir(l.Name), f.Name))
		must(t, err)
		out, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		must(t, err)
		n, err := io.Copy(out, source)
		must(t, err)
		sent += n
		must(t, source.Close())
		must(t, out.Close())
	}
	return sent, to.Import(t.Context(), l, func(i int) string { return filepath.Join(dir, strconv.Itoa(i)) })
}

func all(string, uint32) bool { return true }

func TestAnImportedStoreIsTheSame(t *testing.T) {
	from, to := openStore(t, quickDir(t)), openStore(t, quickDir(t))
	m := newMemory(1, 6)
	publish(t, from, 1, m)
	publish(t, from, 2, append(memory{newMemory(9, 1)[0]}, m[1:]...)) // shares a shard with the first
	must(t, from.Pin(nameOf(1), true))
	listed, err := from.List(all)
	must(t, err)
	var bytes, linked int64
	for _, l := range listed {
		sent, err := sendTo(t, from, to, l)
		must(t, err)
		bytes += sent
		for _, f := range l.Files {
			if f.SameAs != "" {
				linked++
			}
		}
	}
	if linked == 0 {
		t.Error("nothing was linked, so the test shows little")
	}
	there := list(t, to)
	if len(there) != 2 || !there[0].Pinned {
		t.Fatalf("there are %+v", there)
	}
	for i, c := range there {
		must(t, to.Verify(t.Context(), c, 1, nil))
		if c.Shared != list(t, from)[i].Shared {
			t.Errorf("checkpoint %s shares %d bytes, and %d in the store from which it came", c.Name, c.Shared, list(t, from)[i].Shared)
		}
	}
	// Once more changes nothing, and reads nothing of what would be sent.
	must(t, to.Import(t.Context(), listed[1], func(int) string { return "/nonexistent" }))
}

func TestAnImportReplacesACheckpointOfAnotherTimeLine(t *testing.T) {
	from, to := openStore(t, quickDir(t)), openStore(t, quickDir(t))
	publish(t, from, 1, newMemory(1, 2))
	publish(t, to, 2, newMemory(2, 2))
	listed, err := from.List(all)
	must(t, err)
	_, err = sendTo(t, from, to, listed[0])
	must(t, err)
	if got := list(t, to); len(got) != 1 || got[0].sum != list(t, from)[0].sum {
		t.Fatalf("there are %+v", got)
	}
	must(t, to.Verify(t.Context(), list(t, to)[0], 1, nil))
}

// TestAnImportReplacesADamagedCheckpoint of the same record, and one that lacks a file, which is not listed.
func TestAnImportReplacesADamagedCheckpoint(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"missing": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			from, to := openStore(t, quickDir(t)), openStore(t, quickDir(t))
			publish(t, from, 1, newMemory(1, 2))
			listed, err := from.List(all)
			must(t, err)
			_, err = sendTo(t, from, to, listed[0])
			must(t, err)
			must(t, spoil(filepath.Join(to.checkpointDir(nameOf(1)), listed[0].Files[1].Name)))
			if there, err := to.List(all); err != nil || name == "missing" && len(there) > 0 {
				t.Errorf("listed are %v, %v", there, err)
			}
			if err := to.Verify(t.Context(), list(t, to)[0], 1, nil); err == nil {
				t.Fatal("no damage was found")
			}
			_, err = sendTo(t, from, to, listed[0])
			must(t, err)
			must(t, to.Verify(t.Context(), list(t, to)[0], 1, nil))
		})
	}
}

func TestAHostileImportIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(*Listed)
		why    string
	}{
		"a name that leads out":        {func(l *Listed) { l.Name = "../000001" }, "not the name of a checkpoint"},
		"a partial one":                {func(l *Listed) { l.Name = ".partial-000001" }, "not the name of a checkpoint"},
		"a file that leads out":        {func(l *Listed) { l.Files[1].Name = "../../owner.json" }, "invalid name of a checkpoint file"},
		"a mark":                       {func(l *Listed) { l.Files[1].Name = verifiedName }, "invalid name of a checkpoint file"},
		"a link that leads out":        {func(l *Listed) { l.Files[1].SameAs = "000001/../../../etc/shadow" }, "not a file of the checkpoint"},
		"a link to no checkpoint":      {func(l *Listed) { l.Files[1].SameAs = "../etc/shadow" }, "not a file of the checkpoint"},
		"a link to what is not there":  {func(l *Listed) { l.Files[1].SameAs = "000009/x.img" }, "no such file"},
		"another record":               {func(l *Listed) { l.CRC32C++ }, "not the one that was announced"},
		"a file is missing":            {func(l *Listed) { l.Files = l.Files[:len(l.Files)-1] }, "not the one that was announced"},
		"no record":                    {func(l *Listed) { l.Files = l.Files[1:] }, "is missing"},
		"another size":                 {func(l *Listed) { l.Files[1].Bytes++ }, "is missing"},
		"a file twice, another absent": {func(l *Listed) { l.Files[2] = l.Files[1] }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			from, to := openStore(t, quickDir(t)), openStore(t, quickDir(t))
			publish(t, from, 1, newMemory(1, 2))
			listed, err := from.List(all)
			must(t, err)
			l := listed[0]
			if l.Files[0].Name != recordName {
				t.Fatalf("the first file is %s", l.Files[0].Name)
			}
			dir := filepath.Join(to.dir, ".arriving")
			must(t, os.Mkdir(dir, 0o700))
			files := make(map[int]string)
			for i, f := range l.Files {
				files[i] = filepath.Join(dir, strconv.Itoa(i))
				data, err := os.ReadFile(filepath.Join(from.checkpointDir(l.Name), f.Name))
				must(t, err)
				must(t, os.WriteFile(files[i], data, 0o600))
			}
			before := l.Files
			l.Files = append([]ListedFile{}, l.Files...)
			c.damage(&l)
			path := func(i int) string { // of the same file as before
				for number, f := range before {
					if i < len(l.Files) && f.Name == l.Files[i].Name {
						return files[number]
					}
				}
				return files[i]
			}
			wantError(t, to.Import(t.Context(), l, path), c.why)
			entries, err := os.ReadDir(to.path(CheckpointsDir))
			must(t, err)
			if len(entries) > 0 {
				t.Errorf("there is %v", entries)
			}
		})
	}
}
