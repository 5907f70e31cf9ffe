// Package criuimage reads what CRIU's image files say about a dump.
package criuimage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/stats"

	"cucriu/internal/kit/pagemap"
	"cucriu/internal/kit/proc"
)

// Info is what CRIU's image files say about a dump.
type Info struct {
	Version   uint32     `json:"version"` // of the format
	Bytes     uint64     `json:"bytes"`   // of all files in the folder
	Processes []Process  `json:"processes"`
	Dump      *DumpStats `json:"dump,omitempty"` // nil if criu wrote its statistics elsewhere
}

// Process is one process in the images. A parent comes before its children.
type Process struct {
	PID     int    `json:"pid"`
	PPID    int    `json:"ppid"` // 0 for the root
	Name    string `json:"name"`
	State   string `json:"state"` // "running", "stopped" or "dead"
	Threads int    `json:"threads"`
	// MappedBytes is the size of its address space. ImageBytes is how much of that is in
	// the images.
	MappedBytes uint64 `json:"mapped_bytes"`
	ImageBytes  uint64 `json:"image_bytes"`
}

// DumpStats holds what criu measured during the dump.
type DumpStats struct {
	Freezing time.Duration `json:"freezing_ns"`
	Frozen   time.Duration `json:"frozen_ns"`
	Write    time.Duration `json:"write_ns"`
	Pages    uint64        `json:"pages"`
}

// Read reads the images of a dump. Its error names the image that is missing or damaged.
func Read(dir string) (Info, error) {
	entry, err := readEntry[*inventory.InventoryEntry](dir, "inventory.img", "INVENTORY")
	if err != nil {
		return Info{}, err
	}
	info := Info{Version: entry.GetImgVersion()}
	tasks, err := readTasks(dir)
	if err != nil {
		return Info{}, err
	}
	known := map[int]bool{0: true}
	for i, task := range tasks {
		if known[task.PID] || !known[task.PPID] || (i == 0) != (task.PPID == 0) {
			return Info{}, damaged(dir, "pstree.img", fmt.Errorf("its process %d, child of %d, is not part of the process tree", task.PID, task.PPID))
		}
		known[task.PID] = true
		process, err := readProcess(dir, task)
		if err != nil {
			return Info{}, err
		}
		info.Processes = append(info.Processes, process)
	}
	if info.Dump, err = readStats(dir); err != nil {
		return Info{}, err
	}
	info.Bytes, err = folderBytes(dir)
	return info, err
}

var ofAProcess = regexp.MustCompile(`^(inventory|pstree|core|mm|pagemap|files|fdinfo|fs|ids|seccomp|timens)(-[0-9]+)?\.img$`)

// Check refuses images from which criu restores nothing, as far as can be told without decoding
// all of them: one is missing, or cut off. criu reads some only after it has created processes. read is [ReadTree].
func Check(dir string, read func() (Tree, error)) (tree Tree, err error) {
	if err = checkWhole(dir); err == nil {
		tree, err = read()
	}
	if err != nil {
		return Tree{}, err
	}
	return tree, tree.checkFiles(dir)
}

// IsStreamed reports whether a program waits in the folder to hand criu its images, which need not
// be there.
func IsStreamed(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "streamer-serve.sock"))
	return err == nil
}

// checkWhole refuses a folder in which an image of a process is cut off or does not begin
// as an image should. It does not decode the images and does not look for missing ones.
func checkWhole(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	for _, entry := range entries {
		match := ofAProcess.FindStringSubmatch(entry.Name())
		if match == nil {
			continue
		}
		if info, err := entry.Info(); err == nil && info.Size() > maxImageBytes {
			continue // criu itself judges it
		}
		if _, _, err := readFrames(dir, entry.Name(), strings.ToUpper(match[1])); err != nil {
			return err
		}
	}
	return nil
}

func readProcess(dir string, task Task) (Process, error) {
	p := Process{PID: task.PID, PPID: task.PPID, Threads: len(task.Threads)}
	core, err := readCore(dir, p.PID)
	if err != nil {
		return p, err
	}
	p.Name, p.State = proc.Printable(core.GetTc().GetComm()), stateOf(core)
	if p.State == stateDead {
		return p, nil
	}
	memory, err := readAddressSpace(dir, p.PID)
	if err != nil {
		return p, err
	}
	for _, area := range memory.GetVmas() {
		p.MappedBytes += area.GetEnd() - area.GetStart()
	}
	pages, err := readPagemap(dir, fmt.Sprintf("pagemap-%d.img", p.PID))
	if errors.Is(err, pagemap.ErrUnknown) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	info, err := os.Stat(filepath.Join(dir, pages.PagesName()))
	if err != nil {
		return p, missing(dir, pages.PagesName(), err)
	}
	p.ImageBytes = uint64(info.Size() + pages.ParentBytes())
	return p, nil
}

func readStats(dir string) (*DumpStats, error) {
	const name = "stats-dump"
	entry, err := readEntry[*stats.StatsEntry](dir, name, "STATS")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dump := entry.GetDump()
	if dump == nil {
		return nil, damaged(dir, name, errors.New("it contains no dump statistics"))
	}
	return &DumpStats{
		Freezing: time.Duration(dump.GetFreezingTime()) * time.Microsecond,
		Frozen:   time.Duration(dump.GetFrozenTime()) * time.Microsecond,
		Write:    time.Duration(dump.GetMemwriteTime()) * time.Microsecond,
		Pages:    dump.GetPagesWritten(),
	}, nil
}

func folderBytes(dir string) (uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	var total uint64
	for _, entry := range entries {
		info, err := entry.Info()
		switch {
		case err != nil:
			return 0, err
		case info.Mode().IsRegular():
			total += uint64(info.Size())
		case info.IsDir() && entry.Name() == ParentName:
			parent, err := folderBytes(filepath.Join(dir, ParentName))
			if err != nil {
				return 0, err
			}
			total += parent
		}
	}
	return total, nil
}
