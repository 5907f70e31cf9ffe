package files

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/internal/kit/records"
)

// TestADamagedCheckpointChangesNothing damages each file of a checkpoint in turn.
func TestADamagedCheckpointChangesNothing(t *testing.T) {
	s := makeScene(t)
	before := s.describe(t)
	check := func(what string) {
		t.Helper()
		_, err := PutBack(t.Context(), s.checkpoint, PutBackOptions{})
		for name, err := range map[string]error{"PutBack": err, "Check": Check(t.Context(), s.checkpoint)} {
			var damaged *DamagedError
			if !errors.As(err, &damaged) && !errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %s: %v", what, name, err)
			}
		}
		if diff := cmp.Diff(before, s.describe(t)); diff != "" {
			t.Fatalf("%s changed something:\n%s", what, diff)
		}
	}
	for base, intact := range namesIn(t, s.checkpoint) {
		path := filepath.Join(s.checkpoint, base)
		places := []int{0, len(intact) / 2, len(intact) - 2}
		if base == listName {
			places = nil
			for place := 0; place < len(intact)-1; place += 1 + len(intact)/100 {
				places = append(places, place)
			}
		}
		for _, place := range places {
			damaged := []byte(intact)
			damaged[place] ^= 0x04
			must(t, os.WriteFile(path, damaged, 0o600))
			check("a flipped bit in " + base)
		}
		must(t, os.WriteFile(path, []byte(intact[:len(intact)/2]), 0o600))
		check("half of " + base)
		must(t, os.Remove(path))
		check("no " + base)
		must(t, os.WriteFile(path, []byte(intact), 0o600))
	}
	must(t, Check(t.Context(), s.checkpoint))
}

func TestAListThatSaveDoesNotWriteIsRefused(t *testing.T) {
	l, err := readList(makeScene(t).checkpoint)
	must(t, err)
	intact, err := json.Marshal(l)
	must(t, err)
	for name, tt := range map[string]struct {
		change func(l *list)
		says   string
	}{
		"another version":      {func(l *list) { l.Version = 2 }, "has version 2, but this cucriu reads versions up to 1"},
		"a relative path":      {func(l *list) { l.Files[0].Paths[0] = "etc/passwd" }, `file 0: "etc/passwd" is not the path of a file`},
		"a path that goes up":  {func(l *list) { l.Files[0].Paths[0] = "/tmp/../etc/passwd" }, `file 0: "/tmp/../etc/passwd" is not the path of a file`},
		"no path":              {func(l *list) { l.Files[0].Paths = nil }, "file 0 has no path"},
		"a negative size":      {func(l *list) { l.Files[0].Meta.Size = -1 }, "does not fit into it"},
		"content elsewhere":    {func(l *list) { l.Files[contentOf(l)].Content.Data = "../pages" }, `"../pages" are not valid content`},
		"a part behind":        {func(l *list) { l.Files[contentOf(l)].Content.Extents[0].Offset = 1 << 62 }, "does not fit into it"},
		"an entry above":       {func(l *list) { l.Trees[0].Entries[0].Path = "../x" }, `"../x" is not a path in a directory`},
		"a tree of everything": {func(l *list) { l.Trees[0].Dir = "/" }, `"/" is not the path of a file`},
	} {
		t.Run(name, func(t *testing.T) {
			var changed list
			must(t, json.Unmarshal(intact, &changed))
			tt.change(&changed)
			raw, err := json.Marshal(changed)
			must(t, err)
			if _, err := decodeList(raw); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %s", err, tt.says)
			}
		})
	}
}

// decodeList reads a list as it stands in a file.
func decodeList(raw []byte) (list, error) {
	data, err := records.Kind[json.RawMessage]{Version: listVersion, Key: listKind.Key}.Encode(raw)
	if err != nil {
		return list{}, err
	}
	l, _, err := listKind.Parse("x", data)
	return l, err
}

// contentOf is the index of a file with content.
func contentOf(l *list) int {
	for i, f := range l.Files {
		if len(f.Content.Extents) > 0 {
			return i
		}
	}
	return -1
}

// FuzzList checks that no list leads out of its files, and that an accepted one is the same
// when it is written again.
func FuzzList(f *testing.F) {
	f.Add([]byte(`{"version":1,"files":[],"trees":[]}`))
	f.Add([]byte(`{"version":1,"files":[{"paths":["/log"],"use":"append","pid":1,"process":"x","dev":1,"inode":2,"links":1,` +
		`"meta":{"size":5000,"mode":420,"uid":1,"gid":1,"mtime":0},"may_be_shorter":true,"end":{"length":4096,"crc32c":7},"content":{}}],"trees":[]}`))
	f.Add([]byte(`{"version":1,"files":[{"paths":["/a",{"base64":"L/8="}],"use":"content","pid":1,"process":"x","dev":1,"inode":2,"links":2,` +
		`"meta":{"size":9,"mode":420,"uid":1,"gid":1,"mtime":-5},"content":{"data":"cucriu-file-0","extents":[{"offset":1,"length":8,"crc32c":7}]}}],"trees":null}`))
	f.Add([]byte(`{"version":1,"files":null,"trees":[{"dir":"/dev/shm","data":"cucriu-tree-0","entries":[` +
		`{"path":"d","kind":"dir","meta":{"size":0,"mode":493,"uid":0,"gid":0,"mtime":0},"content":{}},` +
		`{"path":"d/f","kind":"file","meta":{"size":2,"mode":420,"uid":0,"gid":0,"mtime":0},"content":{"data":"cucriu-tree-0","extents":[{"offset":0,"length":2,"crc32c":1}]}},` +
		`{"path":"l","kind":"link","meta":{"size":0,"mode":420,"uid":0,"gid":0,"mtime":0},"target":"d/f","content":{}},` +
		`{"path":"s","kind":"symlink","meta":{"size":0,"mode":511,"uid":0,"gid":0,"mtime":0},"target":"/etc","content":{}}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := decodeList(data)
		if err != nil {
			return
		}
		for _, f := range l.Files {
			for _, path := range f.Paths {
				if !filepath.IsAbs(string(path)) || strings.Contains(string(path), "/../") || strings.Contains(string(path), "\x00") {
					t.Errorf("accepted the path %q", path)
				}
			}
			checkExtents(t, f.Content, f.Meta.Size)
		}
		for _, tree := range l.Trees {
			for _, e := range tree.Entries {
				if !filepath.IsLocal(string(e.Path)) {
					t.Errorf("accepted the entry %q", e.Path)
				}
				checkExtents(t, e.Content, e.Meta.Size)
			}
		}
		raw, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeList(raw)
		if diff := cmp.Diff(l, again); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}

func checkExtents(t *testing.T, c content, size int64) {
	t.Helper()
	for _, e := range c.Extents {
		if e.Offset < 0 || e.Length <= 0 || e.Offset+e.Length > size {
			t.Errorf("accepted %+v in %d bytes", e, size)
		}
	}
	if filepath.Base(c.Data) != c.Data && c.Data != "" {
		t.Errorf("accepted the data %q", c.Data)
	}
}
