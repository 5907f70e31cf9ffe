package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
)

// Tree is the tree of processes that a restore of the images creates.
type Tree struct {
	// OwnPIDs says that the tree has a pid namespace of its own. A restore then creates one, or
	// enters one that the caller names. Otherwise the pids are those of criu's own namespace.
	OwnPIDs bool
	tasks   []*pstree.PstreeEntry // the root first
}

// ReadTree reads which processes the images hold, and no more.
func ReadTree(dir string) (Tree, error) {
	entry, err := onlyEntry(dir, "inventory.img", "INVENTORY", &inventory.InventoryEntry{})
	if err != nil {
		return Tree{}, err
	}
	messages, err := readImage(dir, "pstree.img", "PSTREE", &pstree.PstreeEntry{})
	if err != nil {
		return Tree{}, err
	}
	if len(messages) == 0 {
		return Tree{}, damaged(dir, "pstree.img", errors.New("it holds no process"))
	}
	var t Tree
	for _, message := range messages {
		t.tasks = append(t.tasks, message.(*pstree.PstreeEntry))
	}
	// criu compares the root's namespaces with its own at the dump, which the inventory holds.
	ids, err := onlyEntry(dir, fmt.Sprintf("ids-%d.img", t.tasks[0].GetPid()), "IDS", &criucore.TaskKobjIdsEntry{})
	if err != nil {
		return Tree{}, err
	}
	t.OwnPIDs = ids.GetPidNsId() != entry.GetRootIds().GetPidNsId()
	return t, nil
}

// Numbers returns the numbers that a restore needs: of processes and threads, and of process
// groups and sessions whose leader has ended, for which criu creates a process. It leaves out
// the root's own group and session: if the root does not lead them, it gets those of criu.
func (t Tree) Numbers() []int {
	var all []int
	root := t.tasks[0]
	for _, task := range t.tasks {
		all = append(all, int(task.GetPid()))
		for _, tid := range task.GetThreads() {
			all = append(all, int(tid))
		}
		if task.GetPgid() != root.GetPgid() {
			all = append(all, int(task.GetPgid()))
		}
		if task.GetSid() != root.GetSid() {
			all = append(all, int(task.GetSid()))
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id int) bool { return id <= 0 })
}

// CheckFiles refuses images that lack one without which criu restores no process of the tree.
// criu takes a missing image for an empty one, and many of them may be missing.
func (t Tree) CheckFiles(dir string) error {
	names := []string{"files.img"}
	for _, task := range t.tasks {
		pid := task.GetPid()
		core, err := onlyEntry(dir, fmt.Sprintf("core-%d.img", pid), "CORE", &criucore.CoreEntry{})
		if err != nil {
			return err
		}
		for _, tid := range task.GetThreads() {
			names = append(names, fmt.Sprintf("core-%d.img", tid))
		}
		if state := core.GetTc().GetTaskState(); state == 1 || state == 3 { // others have no memory
			for _, kind := range []string{"mm", "pagemap", "fs", "ids"} {
				names = append(names, fmt.Sprintf("%s-%d.img", kind, pid))
			}
			more, err := namedBy(dir, pid)
			if err != nil {
				return err
			}
			names = append(names, more...)
		}
	}
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return missing(dir, name, err)
		}
	}
	return nil
}

// namedBy returns the images that other images of a process name by a number: its open files
// and its pages.
func namedBy(dir string, pid uint32) ([]string, error) {
	ids, err := onlyEntry(dir, fmt.Sprintf("ids-%d.img", pid), "IDS", &criucore.TaskKobjIdsEntry{})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("pagemap-%d.img", pid)
	entries, err := readImage(dir, name, "PAGEMAP", &pagemap.PagemapEntry{})
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, damaged(dir, name, errors.New("it is empty"))
	}
	names := []string{fmt.Sprintf("fdinfo-%d.img", ids.GetFilesId())}
	for _, entry := range entries[1:] {
		const elsewhere = 1<<0 | 1<<1 // PE_PARENT and PE_LAZY of criu's pagemap.h
		if pages := entry.(*pagemap.PagemapEntry); pages.GetFlags()&elsewhere == 0 && !pages.GetInParent() {
			return append(names, fmt.Sprintf("pages-%d.img", entries[0].(*pagemap.PagemapHead).GetPagesId())), nil
		}
	}
	return names, nil
}
