package wire

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
)

// noted notes who is read from.
type noted struct {
	io.ReaderAt
	note func()
}

func (n noted) ReadAt(data []byte, offset int64) (int, error) {
	n.note()
	return n.ReaderAt.ReadAt(data, offset)
}

// TestFilesGoSideBySide: none waits for the end of another one.
func TestFilesGoSideBySide(t *testing.T) {
	l, d := pinnedPair(t)
	want := content(2, 2*sideBySide+1, 0, 3*sideBySide, 10, sideBySide)
	r := receive(t, l, ReceiveOptions{MaxBytes: total(want), MaxFiles: len(want)})
	s, err := NewSender(t.Context(), SendOptions{Dial: d.Dial, Streams: 1})
	must(t, err)
	var mutex sync.Mutex
	var turns []string
	var files []File
	for name, data := range want {
		files = append(files, File{Name: name, Size: int64(len(data)), Content: noted{bytes.NewReader(data), func() {
			mutex.Lock()
			defer mutex.Unlock()
			turns = append(turns, name[5:6])
		}}})
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	must(t, s.Files(t.Context(), files))
	totals, err := s.Finish(t.Context())
	must(t, err)
	must(t, r.Finish())
	checkFiles(t, r.dir, want)
	if totals.Files != len(want) || totals.Bytes != total(want) {
		t.Errorf("totals %+v", totals)
	}
	if got := strings.Join(slices.Compact(turns), ""); got != "0234"+"02"+"02" {
		t.Errorf("the files went in the order %s", got)
	}
}
