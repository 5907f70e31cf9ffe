package criuimage

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/magic"
	"google.golang.org/protobuf/proto"
)

// image returns the bytes of an image file.
func image(t testing.TB, kind string, entries ...proto.Message) []byte {
	t.Helper()
	byName := magic.LoadMagic().ByName
	data := binary.LittleEndian.AppendUint32(nil, uint32(byName["IMG_COMMON"]))
	data = binary.LittleEndian.AppendUint32(data, uint32(byName[kind]))
	for _, entry := range entries {
		encoded, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(encoded))), encoded...)
	}
	return data
}

func task(pid, ppid uint32) *pstree.PstreeEntry {
	return &pstree.PstreeEntry{Pid: &pid, Ppid: &ppid, Pgid: &pid, Sid: &pid, Threads: []uint32{pid}}
}

func readPstree(t testing.TB, data []byte) ([]*pstree.PstreeEntry, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pstree.img"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return readImage[*pstree.PstreeEntry](dir, "pstree.img", "PSTREE")
}

func TestATruncatedImageIsDamaged(t *testing.T) {
	first, both := image(t, "PSTREE", task(7, 0)), image(t, "PSTREE", task(7, 0), task(8, 7))
	for cut := range both {
		tasks, err := readPstree(t, both[:cut])
		switch {
		case cut == 8 && err == nil && len(tasks) == 0:
		case cut == len(first) && err == nil && len(tasks) == 1:
		case err == nil || !strings.Contains(err.Error(), "pstree.img is damaged"):
			t.Errorf("cut off after %d of %d bytes: %d tasks, %v", cut, len(both), len(tasks), err)
		}
	}
	if tasks, err := readPstree(t, both); err != nil || len(tasks) != 2 {
		t.Errorf("the whole image: %d tasks, %v", len(tasks), err)
	}
}

func TestAnImageOfAnotherKindIsDamaged(t *testing.T) {
	if _, err := readPstree(t, image(t, "MM", task(7, 0))); err == nil || !strings.Contains(err.Error(), "is of kind MM") {
		t.Error(err)
	}
}

func TestAnImageThatIsNoFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "pstree.img"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := readImage[*pstree.PstreeEntry](dir, "pstree.img", "PSTREE"); err == nil {
		t.Error("a folder was read as an image")
	}
}

// FuzzRead checks that a refused image gives no tasks and an error that names the file, and
// that an accepted one was whole and reads the same when it is written again.
func FuzzRead(f *testing.F) {
	whole := image(f, "PSTREE", task(7, 0), task(8, 7))
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(append(whole, 0xff, 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, data []byte) {
		tasks, err := readPstree(t, data)
		if err != nil {
			if len(tasks) > 0 || !strings.Contains(err.Error(), "pstree.img") {
				t.Fatalf("%d tasks come with the error %v", len(tasks), err)
			}
			return
		}
		if len(data) < 4+4*len(tasks) { // old images have one magic number
			t.Fatalf("%d tasks in %d bytes", len(tasks), len(data))
		}
		messages := make([]proto.Message, len(tasks))
		for i, task := range tasks {
			messages[i] = task
		}
		again, err := readPstree(t, image(t, "PSTREE", messages...))
		if err != nil || !slices.EqualFunc(tasks, again, func(a, b *pstree.PstreeEntry) bool { return proto.Equal(a, b) }) {
			t.Fatalf("%v are read again as %v (%v)", tasks, again, err)
		}
	})
}

func TestCheckWhole(t *testing.T) {
	whole := image(t, "CORE", task(7, 0)) // it is not decoded
	for _, test := range []struct {
		name, file string
		data       []byte
		damaged    bool
	}{
		{"whole", "core-7.img", whole, false},
		{"cut off", "core-7.img", whole[:len(whole)-1], true},
		{"cut off in its magic", "pagemap-7.img", whole[:3], true},
		{"empty", "mm-7.img", nil, true},
		{"something else", "inventory.img", []byte("something else"), true},
		{"too large to be read here", "pagemap-7.img", make([]byte, maxImageBytes+1), false},
		{"of no process", "core-7.img.bak", nil, false},
		{"of the fast lane", "cucriu-pages-0-7.img", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, test.file), test.data, 0o600); err != nil {
				t.Fatal(err)
			}
			err := checkWhole(dir)
			if (err != nil) != test.damaged {
				t.Errorf("damaged: %v, error %v", test.damaged, err)
			}
			if err != nil && !strings.Contains(err.Error(), filepath.Join(dir, test.file)+" is damaged") {
				t.Errorf("it does not name the image: %v", err)
			}
		})
	}
}
