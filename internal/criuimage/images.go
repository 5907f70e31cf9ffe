// Package criuimage reads what CRIU's image files say about a dump. It is separate from
// package criuutil to keep the decoders of all image kinds out of the hook, which criu
// starts at every stage.
package criuimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/crit"
	criucore "github.com/checkpoint-restore/go-criu/v7/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/stats"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/internal/pagemap"
	"cucriu/internal/proc"
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

// maxImageBytes is the largest image that is read as a whole. Page images are never read.
const maxImageBytes = 64 << 20

// Read reads the images of a dump. Its error names the image that is missing or damaged.
func Read(dir string) (Info, error) {
	entry, err := onlyEntry(dir, "inventory.img", "INVENTORY", &inventory.InventoryEntry{})
	if err != nil {
		return Info{}, err
	}
	info := Info{Version: entry.GetImgVersion()}
	tree, err := readImage(dir, "pstree.img", "PSTREE", &pstree.PstreeEntry{})
	if err != nil {
		return Info{}, err
	}
	known := map[uint32]bool{0: true}
	for i, message := range tree {
		task := message.(*pstree.PstreeEntry)
		if known[task.GetPid()] || !known[task.GetPpid()] || (i == 0) != (task.GetPpid() == 0) {
			return Info{}, damaged(dir, "pstree.img", fmt.Errorf("its process %d, child of %d, has no place in the tree", task.GetPid(), task.GetPpid()))
		}
		known[task.GetPid()] = true
		process, err := readProcess(dir, task)
		if err != nil {
			return Info{}, err
		}
		info.Processes = append(info.Processes, process)
	}
	if len(info.Processes) == 0 {
		return Info{}, damaged(dir, "pstree.img", errors.New("it holds no process"))
	}
	if info.Dump, err = readStats(dir); err != nil {
		return Info{}, err
	}
	info.Bytes, err = folderBytes(dir)
	return info, err
}

var ofAProcess = regexp.MustCompile(`^(inventory|pstree|(core|mm|pagemap)-[0-9]+)\.img$`)

// CheckWhole refuses a folder in which an image of a process is cut off or does not begin
// as an image should. criu reads some of these images only after it has created processes.
// CheckWhole does not decode the images and does not look for missing ones.
func CheckWhole(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("image directory: %w", err)
	}
	for _, entry := range entries {
		if !ofAProcess.MatchString(entry.Name()) {
			continue
		}
		if err := checkFile(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func checkFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() <= maxImageBytes { // criu itself judges a larger one
		err = checkFrames(f)
	}
	if err != nil {
		return damaged(filepath.Dir(path), filepath.Base(path), err)
	}
	return nil
}

func readProcess(dir string, task *pstree.PstreeEntry) (Process, error) {
	pid := task.GetPid()
	p := Process{PID: int(pid), PPID: int(task.GetPpid()), Threads: len(task.GetThreads())}
	core, err := onlyEntry(dir, fmt.Sprintf("core-%d.img", pid), "CORE", &criucore.CoreEntry{})
	if err != nil {
		return p, err
	}
	p.Name = proc.Printable(core.GetTc().GetComm())
	// The task states of criu's include/restorer.h.
	switch core.GetTc().GetTaskState() {
	case 1:
		p.State = "running"
	case 3:
		p.State = "stopped"
	default:
		p.State = "dead"
		return p, nil // it has no memory
	}
	memory, err := onlyEntry(dir, fmt.Sprintf("mm-%d.img", pid), "MM", &mm.MmEntry{})
	if err != nil {
		return p, err
	}
	for _, area := range memory.GetVmas() {
		p.MappedBytes += area.GetEnd() - area.GetStart()
	}
	pages, err := readPagemap(dir, fmt.Sprintf("pagemap-%d.img", pid))
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
	entry, err := onlyEntry(dir, name, "STATS", &stats.StatsEntry{})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dump := entry.GetDump()
	if dump == nil {
		return nil, damaged(dir, name, errors.New("it holds no statistics of a dump"))
	}
	return &DumpStats{
		Freezing: time.Duration(dump.GetFreezingTime()) * time.Microsecond,
		Frozen:   time.Duration(dump.GetFrozenTime()) * time.Microsecond,
		Write:    time.Duration(dump.GetMemwriteTime()) * time.Microsecond,
		Pages:    dump.GetPagesWritten(),
	}, nil
}

// onlyEntry reads an image that holds one entry.
func onlyEntry[T proto.Message](dir, name, kind string, empty T) (T, error) {
	entries, err := readImage(dir, name, kind, empty)
	if err == nil && len(entries) != 1 {
		err = damaged(dir, name, fmt.Errorf("it holds %d entries instead of one", len(entries)))
	}
	if err != nil {
		return empty, err
	}
	return entries[0].(T), nil
}

// readImage reads all entries of an image. kind is the name of its magic number.
func readImage(dir, name, kind string, empty proto.Message) ([]proto.Message, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, missing(dir, name, err)
	}
	defer f.Close()
	// crit reads missing bytes of a cut-off file as zeros, and allocates as much as a size
	// field in the file says.
	if err := checkFrames(f); err != nil {
		return nil, damaged(dir, name, err)
	}
	image, err := crit.New(f, nil, "", false, true).Decode(empty)
	if err != nil {
		return nil, damaged(dir, name, err)
	}
	if image.Magic != kind {
		return nil, damaged(dir, name, fmt.Errorf("it is of kind %s, not %s", image.Magic, kind))
	}
	messages := make([]proto.Message, len(image.Entries))
	for i, entry := range image.Entries {
		messages[i] = entry.Message
	}
	return messages, nil
}

// checkFrames checks that a file consists of its magic number (one word or two) and then,
// up to its last byte, of entries that each follow their size. It leaves the file at its
// beginning.
func checkFrames(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxImageBytes {
		return fmt.Errorf("it is no regular file of at most %d bytes", maxImageBytes)
	}
	if _, err := crit.ReadMagic(f); err != nil {
		return fmt.Errorf("it does not begin as an image: %w", err)
	}
	begin, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	rest := info.Size() - begin
	for rest > 0 {
		var size [4]byte
		if _, err := f.ReadAt(size[:], info.Size()-rest); err != nil {
			return errCutOff
		}
		rest -= 4 + int64(binary.LittleEndian.Uint32(size[:]))
	}
	if rest < 0 {
		return errCutOff
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

var errCutOff = errors.New("it is cut off")

func damaged(dir, name string, err error) error {
	return fmt.Errorf("image %s is damaged: %w", filepath.Join(dir, name), err)
}

func missing(dir, name string, err error) error {
	return fmt.Errorf("no image %s: not a complete dump of criu's: %w", filepath.Join(dir, name), err)
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
