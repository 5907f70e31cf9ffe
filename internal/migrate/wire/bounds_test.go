package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// request is one that a sender which can do anything makes.
type request struct {
	method, ranges string
	body           []byte
}

// piecesOf returns the pieces of ranges, with their checksums.
func piecesOf(ranges string, pieces ...string) request {
	q, sum := request{method: http.MethodPut, ranges: ranges}, startSum(ranges)
	p := &packer{plain: make([]byte, headSize+PieceSize)}
	for _, piece := range pieces {
		copy(p.plain[headSize:], piece)
		var data []byte
		data, sum = p.pack(int64(len(piece)), sum)
		q.body = append(q.body, data...)
	}
	return q
}

func put(name string, offset int64, pieces ...string) request {
	var size int64
	for _, p := range pieces {
		size += int64(len(p))
	}
	ranges, _ := json.Marshal([]fileRange{{Name: name, Offset: offset, Size: size}})
	return piecesOf(string(ranges), pieces...)
}

func finish(sizes string) request { return request{method: http.MethodPost, body: []byte(sizes)} }

// changed is a request with one byte changed.
func changed(q request, at int) request {
	q.body[at] ^= 1
	return q
}

// stored is a request for a piece, of which other bytes came than those that were announced.
func stored(size int, data []byte, announced uint32) request {
	q := put("a", 0, strings.Repeat("x", size))
	q.body = append(q.body[:headSize], data...)
	binary.LittleEndian.PutUint32(q.body, announced)
	return q
}

// ask makes requests of a receiver, until one is refused, and returns what that says. If only
// connections broke, that is "broken".
func ask(r *Receiver, requests ...request) (says string) {
	for _, q := range requests {
		w := httptest.NewRecorder()
		h := httptest.NewRequest(q.method, "/", bytes.NewReader(q.body))
		h.Header.Set(rangesHeader, q.ranges)
		func() {
			defer func() {
				if broken := recover(); broken != nil {
					says = "broken"
				}
			}()
			r.ServeHTTP(w, h)
		}()
		if w.Code == http.StatusInternalServerError {
			return w.Body.String()
		}
	}
	return says
}

func TestWhatNoSenderSendsIsRefused(t *testing.T) {
	full := strings.Repeat("x", PieceSize)
	z, err := zstd.NewWriter(nil)
	must(t, err)
	defer z.Close()
	bomb := z.EncodeAll(make([]byte, 64<<20), nil)
	few := z.EncodeAll(make([]byte, 5000), nil)
	for name, c := range map[string]struct {
		requests []request
		says     string
	}{
		"another method":               {[]request{{method: http.MethodDelete}}, "unknown method"},
		"ranges that are none":         {[]request{{method: http.MethodPut, ranges: "x"}}, "invalid ranges"},
		"too many ranges":              {[]request{{method: http.MethodPut, ranges: "[" + strings.Repeat("{},", maxRanges) + "{}]"}}, "invalid ranges"},
		"an empty range":               {[]request{put("a", 0)}, "invalid range"},
		"a negative offset":            {[]request{put("a", -PieceSize, "x")}, "invalid range"},
		"a negative size":              {[]request{piecesOf(`[{"name":"a","offset":0,"size":-1}]`)}, "invalid range"},
		"an offset within a piece":     {[]request{put("a", 1, "x")}, "invalid range"},
		"the largest offset":           {[]request{put("a", 1<<62, "x")}, "invalid range"},
		"the largest size":             {[]request{piecesOf(`[{"name":"a","offset":1048576,"size":9223372036854775807}]`)}, "invalid range"},
		"a piece too large":            {[]request{stored(5, []byte("xxxxxx"), 6)}, "6 bytes were announced for a piece of 5"},
		"a changed byte":               {[]request{changed(put("a", 0, "content"), headSize+3)}, "damaged"},
		"a changed byte of a head":     {[]request{changed(put("a", 0, "content"), 4)}, "damaged"},
		"pieces in another order":      {[]request{{http.MethodPut, put("a", 0, full, full).ranges, append(put("a", 0, full).body, put("a", 0, full).body...)}}, "damaged"},
		"the pieces of another range":  {[]request{{http.MethodPut, put("a", 0, "content").ranges, put("b", 0, "content").body}}, "damaged"},
		"no zstd":                      {[]request{stored(100, []byte("no zstd"), 7)}, "damaged"},
		"a bomb":                       {[]request{stored(PieceSize, bomb, uint32(len(bomb)))}, "damaged"},
		"less than was said":           {[]request{stored(6000, few, uint32(len(few)))}, "5000 bytes, not 6000"},
		"a body that is cut off":       {[]request{{http.MethodPut, put("a", 0, "content").ranges, put("a", 0, "content").body[:headSize+3]}}, "broken"},
		"a body that goes on":          {[]request{{http.MethodPut, put("a", 0, "x").ranges, append(put("a", 0, "x").body, 1)}}, "more data was received"},
		"more files":                   {[]request{put("a", 0, "x"), put("b", 0, "x"), put("c", 0, "x"), put("d", 0, "x")}, "more than 3 files"},
		"more bytes":                   {[]request{put("a", 0, full, full, "x")}, "2097152 bytes are allowed"},
		"more bytes in two files":      {[]request{put("a", 0, full), put("b", 0, full, "x")}, "more than 2097152 bytes"},
		"a hole beyond":                {[]request{put("a", 1<<40, "\x00")}, "2097152 bytes are allowed"},
		"sizes that are none":          {[]request{finish("x")}, "invalid list"},
		"a negative size of a file":    {[]request{finish(`{"a":-1}`)}, "missing"},
		"an end with bytes missing":    {[]request{put("a", 0, "xyz"), finish(`{"a":5}`)}, "5 of 5 bytes are missing"},
		"an end with a piece missing":  {[]request{put("a", PieceSize, full), finish(`{"a":2097152}`)}, "1048576 of 2097152 bytes are missing"},
		"an end with a piece too much": {[]request{put("a", 0, full, full), finish(`{"a":1048576}`)}, "2 of 1 pieces were received"},
		"an end without a file":        {[]request{put("a", 0, "x"), finish(`{}`)}, "not listed"},
		"an end with another file":     {[]request{put("a", 0, "x"), finish(`{"a":1,"b":1}`)}, "1 of 1 bytes are missing"},
		"an end with a wrong name":     {[]request{finish(`{"../new":0}`)}, "not a valid file name"},
		"an end with more files":       {[]request{finish(`{"a":0,"b":0,"c":0,"d":0}`)}, "more than 3 files"},
		"a file in another directory":  {[]request{put("../a", 0, "x")}, "not a valid file name"},
		"the directory above":          {[]request{put("..", 0, "x")}, "not a valid file name"},
		"the directory":                {[]request{put(".", 0, "x")}, "not a valid file name"},
		"an absolute path":             {[]request{put("/etc/passwd", 0, "x")}, "not a valid file name"},
		"a file below":                 {[]request{put("below/a", 0, "x")}, "not a valid file name"},
		"a hidden file":                {[]request{put(".a", 0, "x")}, "not a valid file name"},
		"an option":                    {[]request{put("-rf", 0, "x")}, "not a valid file name"},
		"a zero in the name":           {[]request{put("a\x00b", 0, "x")}, "not a valid file name"},
		"a line end after the name":    {[]request{put("a\n", 0, "x")}, "not a valid file name"},
		"a terminal's sequence":        {[]request{put("\x1b[2J", 0, "x")}, `\x1b[2J`},
		"a name too long":              {[]request{put(strings.Repeat("a", 202), 0, "x")}, "not a valid file name"},
		"no name":                      {[]request{put("", 0, "x")}, "not a valid file name"},
		"a link that leads elsewhere":  {[]request{put("link", 0, "x")}, "file exists"},
		"a link that leads nowhere":    {[]request{put("dangling", 0, "x")}, "file exists"},
		"a directory of the receiver":  {[]request{put("below", 0, "x")}, "file exists"},
		"a file that was there before": {[]request{put("there", 0, "x")}, "file exists"},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "dir")
			must(t, os.MkdirAll(filepath.Join(dir, "below"), 0o700))
			must(t, os.WriteFile(filepath.Join(above, "victim"), []byte("precious"), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "there"), []byte("precious"), 0o600))
			must(t, os.Symlink("../victim", filepath.Join(dir, "link")))
			must(t, os.Symlink("../new", filepath.Join(dir, "dangling")))
			root, err := os.OpenRoot(dir)
			must(t, err)
			defer root.Close()
			r := newReceiver(nil, ReceiveOptions{Dir: root, MaxBytes: 2 * PieceSize, MaxFiles: 3})
			if says := ask(r, c.requests...); !strings.Contains(says, c.says) {
				t.Fatalf("the sender was told %q", says)
			}
			again := ask(r, finish(`{}`))
			if c.says != "broken" && !strings.Contains(again, c.says) {
				t.Errorf("then, the sender was told %q", again)
			}
			if err := r.Finish(); c.says != "broken" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("finished with %v", err)
			}
			for _, victim := range []string{filepath.Join(above, "victim"), filepath.Join(dir, "there")} {
				if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
					t.Errorf("%s: %q, %v", victim, data, err)
				}
			}
			if _, err := os.Stat(filepath.Join(above, "new")); err == nil {
				t.Error("a file was made outside")
			}
			if data, _ := os.ReadFile(filepath.Join(dir, "a")); c.says == "damaged" && len(bytes.ReplaceAll(data, []byte("x"), nil)) > 0 {
				t.Errorf("%q was written", data)
			}
		})
	}
}

// What a broken connection had is sent again, and so is the end.
func TestWhatIsSentAgainDoesNoHarm(t *testing.T) {
	r := newReceiver(nil, filled(t, ReceiveOptions{MaxBytes: PieceSize + 3, MaxFiles: 2}))
	full := strings.Repeat("x", PieceSize)
	end := finish(`{"a":1048579,"empty":0}`)
	broken := put("a", 0, full, "end")
	broken.body = broken.body[:len(broken.body)-1]
	if says := ask(r, broken, put("a", 0, full), put("a", 0, full, "end"), end, end); says != "broken" {
		t.Fatal(says)
	}
	must(t, r.Finish())
	checkFiles(t, r.Dir.Name(), map[string][]byte{"a": []byte(full + "end"), "empty": {}})
	if says := ask(r, put("a", 0, full)); says != "broken" {
		t.Errorf("after the end: %q", says)
	}
}

// FuzzReceiver checks that whatever a sender says, only plain files are made, in one directory and
// within the bounds.
func FuzzReceiver(f *testing.F) {
	add := func(q request, sizes string) { f.Add(q.ranges, q.body, sizes) }
	add(put("core-1.img", 0, "content"), `{"core-1.img":7}`)
	add(put("a", PieceSize, "content"), `{"a":7}`)
	add(put("../a", 0, "content"), `{"../a":7}`)
	add(stored(100, []byte("no zstd"), 7), `{"b":0}`)
	f.Fuzz(func(t *testing.T, ranges string, body []byte, sizes string) {
		const most, files = 2 * PieceSize, 3
		r := newReceiver(nil, filled(t, ReceiveOptions{MaxBytes: most, MaxFiles: files}))
		ask(r, request{http.MethodPut, ranges, body}, finish(sizes))
		complete := r.Finish() == nil
		entries, err := os.ReadDir(r.Dir.Name())
		must(t, err)
		if len(entries) > files {
			t.Fatalf("%d files", len(entries))
		}
		var bytes int64
		for _, e := range entries {
			info, err := e.Info()
			must(t, err)
			bytes += info.Size()
			if checkName(e.Name()) != nil || info.Mode() != 0o600 || info.Size() > most {
				t.Fatalf("%q, %v, %d bytes", e.Name(), info.Mode(), info.Size())
			}
		}
		if complete && bytes != r.received {
			t.Fatalf("%d bytes came of %d", r.received, bytes)
		}
	})
}
