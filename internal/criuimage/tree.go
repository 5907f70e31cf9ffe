package criuimage

import (
	"fmt"
	"os"
	"path/filepath"

	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"

	"cucriu/internal/pstree"
)

// Tree is the tree of processes that a restore of the images creates.
type Tree struct{ pstree.Tree }

// ReadTree reads which processes the images hold, and no more.
func ReadTree(dir string) (Tree, error) {
	tree, err := pstree.Read(dir)
	return Tree{tree}, err
}

// CheckFiles refuses images that lack one without which criu restores no process of the tree.
// criu takes a missing image for an empty one, and many of them may be missing.
func (t Tree) CheckFiles(dir string) error {
	names := []string{"files.img"}
	for _, task := range t.Tasks {
		pid := task.PID
		core, err := onlyEntry(dir, fmt.Sprintf("core-%d.img", pid), "CORE", &criucore.CoreEntry{})
		if err != nil {
			return err
		}
		for _, tid := range task.Threads {
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
func namedBy(dir string, pid int) ([]string, error) {
	ids, err := onlyEntry(dir, fmt.Sprintf("ids-%d.img", pid), "IDS", &criucore.TaskKobjIdsEntry{})
	if err != nil {
		return nil, err
	}
	pages, err := pagesOf(dir, pid)
	return append(pages, fmt.Sprintf("fdinfo-%d.img", ids.GetFilesId())), err
}
