package criuimage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"

	"cucriu/internal/kit/durable"
)

// Tree is the tree of processes that a restore of the images creates.
type Tree struct {
	// OwnPIDs says that the tree has a pid namespace of its own. A restore then creates one, or
	// enters one that the caller names. Otherwise the pids are those of criu's own namespace.
	OwnPIDs bool
	// OwnNetwork and OwnMounts say the same of its network and mount namespaces.
	OwnNetwork, OwnMounts bool
	Tasks                 []Task // the root first
}

// Task is a process of a tree.
type Task struct {
	PID, PPID, PGID, SID int
	Threads              []int // with the first thread, whose id is the pid
}

// ReadTree reads which processes the images in a folder hold, and no more.
func ReadTree(dir string) (t Tree, err error) {
	if t.Tasks, err = readTasks(dir); err != nil {
		return t, err
	}
	// criu compares the root's namespaces with its own at the dump, which the inventory holds.
	host, err := readEntry[*inventory.InventoryEntry](dir, "inventory.img", "INVENTORY")
	if err != nil {
		return t, err
	}
	ours, err := readEntry[*criucore.TaskKobjIdsEntry](dir, fmt.Sprintf("ids-%d.img", t.Tasks[0].PID), "IDS")
	if err != nil {
		return t, err
	}
	theirs := host.GetRootIds()
	t.OwnPIDs = ours.GetPidNsId() != theirs.GetPidNsId()
	t.OwnNetwork = ours.GetNetNsId() != theirs.GetNetNsId()
	t.OwnMounts = ours.GetMntNsId() != theirs.GetMntNsId()
	return t, nil
}

func readTasks(dir string) ([]Task, error) {
	entries, err := readImage[*pstree.PstreeEntry](dir, "pstree.img", "PSTREE")
	if err == nil && len(entries) == 0 {
		err = damaged(dir, "pstree.img", errors.New("it contains no process"))
	}
	var tasks []Task
	for _, e := range entries {
		task := Task{PID: int(e.GetPid()), PPID: int(e.GetPpid()), PGID: int(e.GetPgid()), SID: int(e.GetSid())}
		for _, tid := range e.GetThreads() {
			task.Threads = append(task.Threads, int(tid))
		}
		if len(task.Threads) <= 1 {
			// As the thread of a zombie criu writes no number, but what is in its memory.
			task.Threads = []int{task.PID}
		}
		tasks = append(tasks, task)
	}
	return tasks, err
}

// Numbers returns the numbers that a restore needs: of processes and threads, and of process
// groups and sessions whose leader has ended, for which criu creates a process. It leaves out
// the root's own group and session: if the root does not lead them, it gets those of criu.
func (t Tree) Numbers() []int {
	var all []int
	root := t.Tasks[0]
	for _, task := range t.Tasks {
		all = append(all, task.PID)
		all = append(all, task.Threads...)
		if task.PGID != root.PGID {
			all = append(all, task.PGID)
		}
		if task.SID != root.SID {
			all = append(all, task.SID)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(id int) bool { return id <= 0 })
}

// checkFiles refuses images that lack one without which criu restores no process of the tree.
// criu takes a missing image for an empty one, and many of them may be missing.
func (t Tree) checkFiles(dir string) error {
	names := []string{FilesName}
	for _, task := range t.Tasks {
		core, err := readCore(dir, task.PID)
		if err != nil {
			return err
		}
		for _, tid := range task.Threads {
			names = append(names, coreName(tid))
		}
		if stateOf(core) == stateDead {
			continue
		}
		for _, kind := range []string{"mm", "pagemap", "fs", "ids"} {
			names = append(names, fmt.Sprintf("%s-%d.img", kind, task.PID))
		}
		more, err := namedBy(dir, task.PID)
		if err != nil {
			return err
		}
		names = append(names, more...)
	}
	shared, err := durable.Match(dir, "pagemap-shmem-*.img")
	if err != nil {
		return err
	}
	for _, path := range shared {
		more, err := pagesOf(dir, filepath.Base(path))
		if err != nil {
			return err
		}
		names = append(names, more...)
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
func namedBy(dir string, pid int) ([]string, error) {
	files, err := openFilesOf(dir, pid)
	if err != nil {
		return nil, err
	}
	pages, err := pagesOf(dir, fmt.Sprintf("pagemap-%d.img", pid))
	return append(pages, files), err
}

// openFilesOf names the image of a process's open files.
func openFilesOf(dir string, pid int) (string, error) {
	ids, err := readEntry[*criucore.TaskKobjIdsEntry](dir, fmt.Sprintf("ids-%d.img", pid), "IDS")
	return fmt.Sprintf("fdinfo-%d.img", ids.GetFilesId()), err
}

func coreName(tid int) string { return fmt.Sprintf("core-%d.img", tid) }

func readCore(dir string, tid int) (*criucore.CoreEntry, error) {
	return readEntry[*criucore.CoreEntry](dir, coreName(tid), "CORE")
}

const stateDead = "dead" // a process that has no memory

// stateOf names the state of a process, which criu's include/restorer.h numbers.
func stateOf(core *criucore.CoreEntry) string {
	switch core.GetTc().GetTaskState() {
	case 1:
		return "running"
	case 3:
		return "stopped"
	}
	return stateDead
}
