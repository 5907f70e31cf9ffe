package criuimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/magic"
	"github.com/google/renameio/v2"
)

// Settle makes the images that criu has just written those of a job that is restored elsewhere and judged by
// others: see clearDeathSignal, addEmpty and keepOrphans. Images that are not there, because a program streams them
// elsewhere, stay as they are. That some are missing which should be there is found by whoever reads them.
func Settle(dir string) error {
	tree, err := readTasks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = clearDeathSignal(dir, tree[0].Threads)
	}
	if err == nil {
		err = addEmpty(dir, tree)
	}
	if err == nil {
		err = keepOrphans(dir, tree)
	}
	return err
}

// addEmpty adds the list of open files of each process that has none, which criu does not write: only who has
// made the images knows that such a list has not been lost.
func addEmpty(dir string, tasks []Task) error {
	known := magic.LoadMagic().ByName
	empty := binary.LittleEndian.AppendUint32(nil, uint32(known["IMG_COMMON"]))
	empty = binary.LittleEndian.AppendUint32(empty, uint32(known["FDINFO"]))
	for _, task := range tasks {
		core, err := readCore(dir, task.PID)
		if err != nil {
			return err
		}
		if stateOf(core) == stateDead {
			continue
		}
		name, err := openFilesOf(dir, task.PID)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue // what is wrong with it is found by whoever reads it
		}
		if err := renameio.WriteFile(path, empty, 0o600, renameio.WithTempDir(dir)); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	return nil
}
