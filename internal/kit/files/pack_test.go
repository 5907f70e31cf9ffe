package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestPackedDirectoriesAreTheSameElsewhere, with all that a copy of cp --archive has.
func TestPackedDirectoriesAreTheSameElsewhere(t *testing.T) {
	top := tempDir(t)
	from, packed, to := filepath.Join(top, "from", "0"), filepath.Join(top, "packed"), filepath.Join(top, "to", "0")
	empty := filepath.Join(top, "from", "1")
	at := func(base string) string { return filepath.Join(from, base) }
	must(t, errors.Join(os.MkdirAll(at("one/two"), 0o755), os.Mkdir(empty, 0o1777)))
	must(t, errors.Join(os.Mkdir(packed, 0o700), os.Mkdir(filepath.Dir(to), 0o700)))
	write(t, at("one/two/file"), strings.Repeat("in a directory", 9999))
	write(t, at("not\xffUTF-8\n"), "not UTF-8")
	write(t, at("empty"), "")
	write(t, at("suid"), "suid")
	must(t, errors.Join(os.Chown(at("suid"), 12, 34), unix.Chmod(at("suid"), 0o6711)))
	must(t, errors.Join(os.Symlink("/etc/passwd", at("link")), os.Symlink("nowhere", at("one/loose"))))
	must(t, errors.Join(unix.Mkfifo(at("pipe"), 0o622), unix.Mknod(at("socket"), unix.S_IFSOCK|0o640, 0)))
	must(t, errors.Join(os.Lchown(at("link"), 12, 34), os.Chown(at("socket"), 12, 34)))
	must(t, errors.Join(os.Link(at("suid"), at("one/suid too")), os.Link(at("socket"), at("socket too"))))
	must(t, os.WriteFile(at("sparse"), nil, 0o600))
	must(t, errors.Join(os.Truncate(at("sparse"), 16<<20), unix.Chmod(at("one/two"), 0o1700)))
	must(t, errors.Join(os.Chown(from, 12, 34), unix.Chmod(from, 0o2750)))
	attributes := map[string]string{"trusted.cucriu": "a\x00value", "trusted.empty": ""}
	named := []string{".", "one/two", "suid", "pipe"}
	for _, base := range named {
		for name, value := range attributes {
			must(t, unix.Lsetxattr(at(base), name, []byte(value), 0))
		}
	}
	for _, path := range []string{at("one/two/file"), at("one/two"), at("one"), from} {
		must(t, os.Chtimes(path, time.Time{}, time.Unix(1e9, 5)))
	}
	size, err := ForeseePack(t.Context(), []string{from, empty}, packed)
	must(t, err)
	must(t, Pack(t.Context(), []string{from, empty}, packed))
	data, err := os.Stat(filepath.Join(packed, treePrefix+"0"))
	if must(t, err); data.Size() != size || size > 1<<20 {
		t.Errorf("%d bytes were packed, and %d foreseen", data.Size(), size)
	}
	must(t, Unpack(t.Context(), packed, []string{to, filepath.Join(filepath.Dir(to), "1")}))
	for _, base := range []string{"0", "1"} {
		want, got := filepath.Join(filepath.Dir(from), base), filepath.Join(filepath.Dir(to), base)
		if diff := cmp.Diff(describeTree(t, want), describeTree(t, got)); diff != "" {
			t.Error(diff)
		}
	}
	want, got := describeTree(t, filepath.Dir(from)), describeTree(t, filepath.Dir(to))
	for _, base := range []string{"0", "1"} {
		if want, got := want["from/"+base], got["to/"+base]; want != got {
			t.Errorf("directory %s itself: %s, and became %s", base, want, got)
		}
	}
	for _, base := range named {
		buffer := make([]byte, 100)
		for name, value := range attributes {
			n, err := unix.Lgetxattr(filepath.Join(to, base), name, buffer)
			if must(t, err); string(buffer[:n]) != value {
				t.Errorf("%s has %s=%q", base, name, buffer[:n])
			}
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(to, "sparse"), &st))
	if st.Blocks*512 > 1<<20 {
		t.Errorf("the sparse file has lost its holes: %+v", st)
	}
}

// TestADeviceIsNotPacked, and that is known beforehand.
func TestADeviceIsNotPacked(t *testing.T) {
	top := tempDir(t)
	must(t, unix.Mknod(filepath.Join(top, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	_, err := ForeseePack(t.Context(), []string{top}, top)
	if err == nil || !strings.Contains(err.Error(), "null is a device") {
		t.Error(err)
	}
}

// TestWhatIsMountedIsNotLeftOut of what is packed without a word, and that is known beforehand.
func TestWhatIsMountedIsNotLeftOut(t *testing.T) {
	top := tempDir(t)
	write(t, filepath.Join(top, "file"), "a file")
	must(t, os.Mkdir(filepath.Join(top, "dir"), 0o700))
	for base, from := range map[string]string{"dir": "tmpfs", "file": "/proc/version"} {
		at := filepath.Join(top, base)
		if from == "tmpfs" {
			must(t, unix.Mount(from, at, from, 0, ""))
		} else {
			must(t, unix.Mount(from, at, "", unix.MS_BIND, ""))
		}
		_, err := ForeseePack(t.Context(), []string{top}, top)
		if err == nil || !strings.Contains(err.Error(), at+" is on another file system") {
			t.Error(err)
		}
		must(t, unix.Unmount(at, unix.MNT_DETACH))
	}
}

// TestNothingThatWasPackedLeadsElsewhere: the other host may be hostile.
func TestNothingThatWasPackedLeadsElsewhere(t *testing.T) {
	top := tempDir(t)
	outside := filepath.Join(top, "outside")
	must(t, os.Mkdir(outside, 0o700))
	write(t, filepath.Join(outside, "file"), "outside")
	before := describeTree(t, outside)
	dir := &entry{Path: ".", Kind: kindDir}
	link := func(target string) *entry { return &entry{Path: "link", Kind: kindSymlink, Target: name(target)} }
	mine := metadata{Mode: 0o777, UID: 12, GID: 12}
	foreign := content{Data: "../outside/file", Extents: []extent{{Length: 7}}}
	for i, entries := range [][]*entry{
		{link(outside), {Path: "link/new", Kind: kindFile}},
		{link(outside), {Path: "link/new", Kind: kindDir}},
		{link(outside), {Path: "link/new", Kind: kindFIFO}},
		{link(outside), {Path: "link/new", Kind: kindSymlink, Target: "x"}},
		{link(outside + "/file"), {Path: "link", Kind: kindFile, Meta: mine}},
		{link(outside), {Path: "link", Kind: kindDir, Meta: mine}},
		{link("../../outside"), {Path: "link/new", Kind: kindFile}},
		{{Path: "link", Kind: kindLink, Target: name(outside + "/file")}},
		{{Path: "link", Kind: kindLink, Target: "../../outside/file"}},
		{link(outside), {Path: "file", Kind: kindLink, Target: "link/file"}},
		{{Path: "../../outside/new", Kind: kindFile}},
		{{Path: name(outside + "/new"), Kind: kindFile}},
		{{Path: "a", Kind: kindDir}, {Path: "a/..", Kind: kindFIFO, Meta: mine}},
		{{Path: "a", Kind: kindDir}, {Path: "a/../../..", Kind: kindDir, Meta: mine}},
		{{Path: "file", Kind: kindFile, Meta: metadata{Size: 9}, Content: foreign}},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			packed, to := t.TempDir(), filepath.Join(top, fmt.Sprint("to", i))
			of := tree{Dir: "/", Top: dir, Data: treePrefix + "0", Entries: entries}
			must(t, listKind.Write(packed, list{Version: listVersion, Trees: []tree{of}}))
			if err := Unpack(t.Context(), packed, []string{to}); err == nil {
				t.Error("it was unpacked")
			}
			if diff := cmp.Diff(before, describeTree(t, outside)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := Unpack(t.Context(), t.TempDir(), nil); err == nil {
		t.Error("nothing was unpacked")
	}
}
