package files

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// recorder writes down what is made.
func recorder(path string) func(Made) error {
	return func(m Made) error {
		data, err := json.Marshal(m)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(append(data, '\n'))
		return errors.Join(err, f.Close())
	}
}

// recorded reads what a recorder has written.
func recorded(t *testing.T, path string) []Made {
	t.Helper()
	data, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	var all []Made
	for line := range strings.Lines(string(data)) {
		var m Made
		must(t, json.Unmarshal([]byte(line), &m))
		all = append(all, m)
	}
	return all
}

func inodeAt(t *testing.T, path string) uint64 {
	t.Helper()
	st, err := statPath(path)
	must(t, err)
	return st.Ino
}

// TestWhoeverIsKilledLeavesOnlyWhatCanBeFound: what is not recorded is not there, or goes with the
// next attempt.
func TestWhoeverIsKilledLeavesOnlyWhatCanBeFound(t *testing.T) {
	for killAt := 0; ; killAt++ {
		top := tempDir(t)
		dir, record := filepath.Join(top, "dir"), filepath.Join(top, "record")
		must(t, os.Mkdir(dir, 0o755))
		first, second := inParts(t, filepath.Join(dir, "first"), 'a'), write(t, filepath.Join(dir, "second"), "second")
		must(t, os.Link(second, second+"-2"))
		root := startJob(t, jobFile(first, unix.O_RDONLY), jobFile(second, unix.O_WRONLY|unix.O_APPEND), jobFile(second+"-2", unix.O_RDONLY))
		checkpoint := save(t, root, Options{Elsewhere: true, Also: map[string]uint64{first: inodeAt(t, first)}})
		there := func() map[string]string { return scene{dir: dir, shm: t.TempDir()}.describe(t) }
		whole := there()
		must(t, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)))

		cmd := putBackProcess(t, checkpoint, killAt)
		cmd.Env = append(cmd.Env, "RECORD="+record, "UNDO=")
		out, err := cmd.CombinedOutput()
		killed := wasKilled(err)
		if err != nil && !killed {
			t.Fatalf("step %d: %v\n%s", killAt, err, out)
		}
		if diff := cmp.Diff(whole, there()); !killed && diff != "" {
			t.Error(diff)
		}
		for _, m := range recorded(t, record) {
			must(t, Unmake(m))
		}
		for base, text := range there() { // a file without any content, whose number nobody knew yet
			if !strings.HasSuffix(base, partialSuffix) || !strings.Contains(text, "size 0") {
				t.Errorf("after a kill at step %d there is %s: %s", killAt, base, text)
			}
		}
		if out, err := putBackProcess(t, checkpoint, -1).CombinedOutput(); err != nil {
			t.Fatalf("after a kill at step %d: %v\n%s", killAt, err, out)
		}
		if diff := cmp.Diff(whole, there()); diff != "" {
			t.Errorf("after a kill at step %d:\n%s", killAt, diff)
		}
		if !killed {
			if killAt < 8 {
				t.Errorf("there were only %d steps", killAt)
			}
			return
		}
	}
}

func TestWhatIsNotAsItWasMadeStays(t *testing.T) {
	for title, change := range map[string]func(dir string) error{
		"another file": func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/new", []byte("made"), 0o644), os.Rename(dir+"/new", dir+"/file"))
		},
		"written to": func(dir string) error { return os.WriteFile(dir+"/file", []byte("mine"), 0o644) },
		"appended to": func(dir string) error {
			return errors.Join(os.Truncate(dir+"/file", 10), os.Chtimes(dir+"/file", noon(), noon()))
		},
		"a symbolic link": func(dir string) error {
			return errors.Join(os.Rename(dir+"/file", dir+"/moved"), os.Symlink("moved", dir+"/file"))
		},
		"a symbolic link on the way": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"-moved"), os.Symlink(dir+"-moved", dir))
		},
		"removed": func(dir string) error { return os.RemoveAll(dir) },
	} {
		t.Run(title, func(t *testing.T) {
			dir := filepath.Join(tempDir(t), "dir")
			must(t, os.Mkdir(dir, 0o755))
			path := write(t, dir+"/file", "made")
			must(t, os.Chtimes(path, noon(), noon()))
			st, err := statPath(path)
			must(t, err)
			m := Made{Path: name(path), Dev: uint64(st.Dev), Inode: st.Ino, Size: 4, MTime: noon()}
			must(t, change(dir))
			count := func() (n int) {
				must(t, filepath.WalkDir(filepath.Dir(dir), func(string, fs.DirEntry, error) error { n++; return nil }))
				return n
			}
			before := count()
			must(t, Unmake(m))
			if after := count(); after != before {
				t.Errorf("%d of %d are left", after, before)
			}
		})
	}
}

func TestMakeDirectory(t *testing.T) {
	top := tempDir(t)
	path := filepath.Join(top, "made")
	var made []Made
	making := func(m Made) error {
		if _, err := os.Lstat(string(m.Path)); len(made) == 0 && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is there before it is known: %v", err)
		}
		made = append(made, m)
		return nil
	}
	must(t, MakeDirectory(path, 0o3751, 12, 34, making))
	st, err := statPath(path)
	must(t, err)
	if st.Mode != unix.S_IFDIR|0o3751 || st.Uid != 12 || st.Gid != 34 || len(made) != 1 {
		t.Errorf("%+v, %v", st, made)
	}
	if err := MakeDirectory(path, 0o755, 0, 0, making); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over another one: %v", err)
	}
	write(t, path+"/in it", "")
	must(t, Unmake(made[0]))
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(path+"/in it"))
	for _, m := range made {
		must(t, Unmake(m))
	}
	if names := namesIn(t, top); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

// TestNoDirectoryIsMadeWhereAnotherUserLeadsRoot nor given away.
func TestNoDirectoryIsMadeWhereAnotherUserLeadsRoot(t *testing.T) {
	making := func(Made) error { return nil }
	for title, tt := range map[string]struct {
		before func(dir string) error
		says   string
	}{
		"a symbolic link on the way": {
			before: func(dir string) error {
				return errors.Join(os.Rename(dir, dir+"-moved"), os.Symlink(dir+"-moved", dir))
			},
			says: "symbolic link",
		},
		"no directory on the way": {before: os.Remove, says: "is missing"},
		"a symbolic link":         {before: func(dir string) error { return os.Symlink("/etc", dir+"/made") }, says: "exists"},
	} {
		t.Run(title, func(t *testing.T) {
			dir := filepath.Join(tempDir(t), "dir")
			must(t, os.Mkdir(dir, 0o755))
			must(t, tt.before(dir))
			err := MakeDirectory(dir+"/made", 0o777, 12, 34, making)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %s", err, tt.says)
			}
		})
	}
	dir := tempDir(t)
	for title, change := range map[string]func(*os.File) error{
		"another owner": func(f *os.File) error { return f.Chown(12, 34) },
		"another mode":  func(f *os.File) error { return f.Chmod(0o755) },
		"full":          func(f *os.File) error { return os.Mkdir(filepath.Join(f.Name(), "x"), 0o700) },
	} {
		f, err := os.Open(filepath.Join(dir, mkdir(t, dir, title)))
		must(t, err)
		must(t, checkNew(f))
		must(t, f.Close())
		f, err = os.Open(filepath.Join(dir, title))
		must(t, err)
		must(t, change(f))
		if err := checkNew(f); err == nil {
			t.Errorf("%s: it counts as new", title)
		}
		must(t, f.Close())
	}
}

func mkdir(t *testing.T, dir, base string) string {
	t.Helper()
	must(t, os.Mkdir(filepath.Join(dir, base), 0o700))
	return base
}
