package inventory

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestATreeKeepsWhatItHasRead: what is closed and opened afterwards changes nothing in it.
func TestATreeKeepsWhatItHasRead(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	before := open("before")
	tree, err := Of([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	find := func(tree *Tree, name string) *File {
		for f := range tree.Open {
			if f.Link == filepath.Join(dir, name) {
				return f
			}
		}
		return nil
	}
	f := find(tree, "before")
	if f == nil || f.Number != fmt.Sprint(before.Fd()) || f.Kind() != unix.S_IFREG || f.Info().Flags&unix.O_APPEND == 0 {
		t.Fatalf("found %+v", f)
	}
	before.Close()
	after := open("after")
	defer after.Close()
	if find(tree, "before") != f || find(tree, "after") != nil || f.Info().Flags&unix.O_APPEND == 0 {
		t.Error("the tree has changed since it was read")
	}
	now, err := Now(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if same, err := tree.Process(os.Getpid()); err != nil || same != tree.Processes[0] || same == now {
		t.Errorf("the tree's process is %p (%v), of %p", same, err, tree.Processes)
	}
}

// TestATreeLeavesOutWhoHasEnded, but not its root.
func TestATreeLeavesOutWhoHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	pids := []int{os.Getpid(), cmd.Process.Pid}
	tree, err := Of(pids)
	if err != nil || tree.Has(pids[1]) || !tree.Has(pids[0]) || !slices.Equal(tree.PIDs, pids) {
		t.Errorf("%+v, %v", tree, err)
	}
	if _, err := Of([]int{pids[1], pids[0]}); err == nil {
		t.Error("a tree without a root was read")
	}
	if _, err := (*Tree)(nil).Process(os.Getpid()); err != nil {
		t.Error(err)
	}
}

// TestRemovedNamesAreThoseOfFilesThatHaveOthers: a file that has no name is none of them.
func TestRemovedNamesAreThoseOfFilesThatHaveOthers(t *testing.T) {
	dir := t.TempDir()
	one, other, none := filepath.Join(dir, "one"), filepath.Join(dir, "other"), filepath.Join(dir, "none")
	for _, name := range []string{one, none} {
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if err := os.Link(one, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(none, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{one, none} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := Of([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	removed := slices.DeleteFunc(tree.RemovedNames(), func(n RemovedName) bool { return filepath.Dir(n.Path) != dir })
	if len(removed) != 1 || removed[0].Path != one || removed[0].PID != os.Getpid() {
		t.Errorf("removed are %+v", removed)
	}
	if _, largest := tree.Unlinked(); largest == nil || largest.Stat().Size < 1<<20 {
		t.Errorf("the largest unlinked file is %+v", largest)
	}
}

func TestParseMounts(t *testing.T) {
	const text = `24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 24 0:26 / /a\040b rw - tmpfs tmpfs rw,size=4k
31 24 0:27 /x /c rw shared:2 master:1 - overlay overlay rw
nonsense
`
	want := []Mount{
		{"24", unix.Mkdev(8, 1), "/", "ext4", "/dev/sda1"},
		{"30", unix.Mkdev(0, 26), "/a b", "tmpfs", "tmpfs"},
		{"31", unix.Mkdev(0, 27), "/c", "overlay", "overlay"},
	}
	if diff := cmp.Diff(want, parseMounts(text)); diff != "" {
		t.Error(diff)
	}
}

// TestOnlyMountsOfTheNamespaceAreKnown, and what nobody can tell is no strange mount.
func TestOnlyMountsOfTheNamespaceAreKnown(t *testing.T) {
	tree, err := Of([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	mounts := tree.Mounts()
	if len(mounts) == 0 || !tree.HasMount(mounts[0].ID) || tree.HasMount("nonsense") || !tree.HasMount("") {
		t.Errorf("mounts are %v", mounts)
	}
	if !tree.HasMount(memoryMount()) || !new(Tree).HasMount("nonsense") {
		t.Error("a mount is missing that cannot be seen")
	}
}

// TestSocketsOfATree are known by their inodes.
func TestSocketsOfATree(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	tree, err := Of([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := tree.UNIXSockets()
	if err != nil {
		t.Skip(err) // it needs rights in the network namespace
	}
	ends := make(map[uint64]uint64)
	for inode, f := range tree.Inodes("socket") {
		if f.Number == fmt.Sprint(pair[0]) || f.Number == fmt.Sprint(pair[1]) {
			ends[inode] = sockets[inode].Peer
		}
	}
	for inode, peer := range ends {
		if len(ends) != 2 || ends[peer] != inode {
			t.Errorf("the ends are %v", ends)
		}
	}
}
