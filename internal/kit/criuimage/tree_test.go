package criuimage

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"google.golang.org/protobuf/proto"
)

func kobjIDs(pidNamespace uint32) *criucore.TaskKobjIdsEntry {
	return &criucore.TaskKobjIdsEntry{
		VmId: proto.Uint32(1), FilesId: proto.Uint32(1), FsId: proto.Uint32(1), SighandId: proto.Uint32(1), PidNsId: &pidNamespace,
	}
}

func TestReadTree(t *testing.T) {
	member := func(pid, ppid, pgid, sid uint32, threads ...uint32) *pstree.PstreeEntry {
		return &pstree.PstreeEntry{Pid: &pid, Ppid: &ppid, Pgid: &pgid, Sid: &sid, Threads: append(threads, pid)}
	}
	zombie := func(pid, ppid uint32) *pstree.PstreeEntry {
		return &pstree.PstreeEntry{Pid: &pid, Ppid: &ppid, Pgid: proto.Uint32(7), Sid: proto.Uint32(7), Threads: []uint32{2529665440}}
	}
	for _, test := range []struct {
		name      string
		namespace uint32
		tasks     []proto.Message
		ownPIDs   bool
		numbers   []int
	}{
		{"threads", 1, []proto.Message{member(7, 0, 7, 7, 8, 9)}, false, []int{7, 8, 9}},
		{"a namespace of its own", 2, []proto.Message{member(1, 0, 1, 1)}, true, []int{1}},
		{"a shell's job, whose group and session are criu's", 1, []proto.Message{member(7, 0, 6, 5), member(8, 7, 6, 5)}, false, []int{7, 8}},
		{"groups and sessions without their leader", 1, []proto.Message{member(7, 0, 7, 7), member(9, 7, 8, 7), member(11, 7, 10, 10)}, false, []int{7, 8, 9, 10, 11}},
		{"a zombie, as whose thread criu writes anything", 1, []proto.Message{member(7, 0, 7, 7), zombie(8, 7)}, false, []int{7, 8}},
		{"a group of outside the namespace", 2, []proto.Message{member(1, 0, 1, 1), member(2, 1, 0, 0)}, true, []int{1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name string, data []byte) {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			root := int(test.tasks[0].(*pstree.PstreeEntry).GetPid())
			write("inventory.img", image(t, "INVENTORY", &inventory.InventoryEntry{ImgVersion: proto.Uint32(2), RootIds: kobjIDs(1)}))
			write("pstree.img", image(t, "PSTREE", test.tasks...))
			write("ids-"+strconv.Itoa(root)+".img", image(t, "IDS", kobjIDs(test.namespace)))
			tree, err := ReadTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			if tree.OwnPIDs != test.ownPIDs || !slices.Equal(tree.Numbers(), test.numbers) {
				t.Errorf("own pids %v, numbers %v; want %v, %v", tree.OwnPIDs, tree.Numbers(), test.ownPIDs, test.numbers)
			}
		})
	}
}
