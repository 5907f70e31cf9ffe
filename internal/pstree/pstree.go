// Package pstree reads from CRIU's images which processes a restore creates, and which TCP
// addresses it binds. It knows the few fields that this takes, so that the hook, which criu starts at every stage, needs no
// decoders of CRIU's images.
package pstree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
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

// ErrDamaged says that an image is not as criu writes it.
var ErrDamaged = errors.New("it is damaged")

// Read reads which processes the images in a folder hold, and no more.
func Read(dir string) (Tree, error) {
	var t Tree
	entries, err := readEntries(dir, "pstree.img")
	if err != nil {
		return t, err
	}
	for _, entry := range entries {
		task, err := parseTask(entry)
		if err != nil {
			return t, imageError(dir, "pstree.img", err)
		}
		t.Tasks = append(t.Tasks, task)
	}
	if len(t.Tasks) == 0 {
		return t, imageError(dir, "pstree.img", fmt.Errorf("%w: it holds no process", ErrDamaged))
	}
	// criu compares the root's namespaces with its own at the dump, which the inventory holds.
	const rootIDs, pidNamespace, networkNamespace, mountNamespace = 3, 5, 6, 9
	isOwn := func(namespace protowire.Number) (bool, error) {
		ours, err := field(dir, "inventory.img", rootIDs, namespace)
		if err != nil {
			return false, err
		}
		theirs, err := field(dir, fmt.Sprintf("ids-%d.img", t.Tasks[0].PID), namespace)
		return ours != theirs, err
	}
	if t.OwnPIDs, err = isOwn(pidNamespace); err == nil {
		t.OwnNetwork, err = isOwn(networkNamespace)
	}
	if err == nil {
		t.OwnMounts, err = isOwn(mountNamespace)
	}
	return t, err
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

func parseTask(entry []byte) (Task, error) {
	var task Task
	err := eachField(entry, func(number protowire.Number, value uint64, packed []byte) error {
		switch number {
		case 1:
			task.PID = int(value)
		case 2:
			task.PPID = int(value)
		case 3:
			task.PGID = int(value)
		case 4:
			task.SID = int(value)
		case 5:
			if packed == nil {
				task.Threads = append(task.Threads, int(value))
			}
			for len(packed) > 0 {
				value, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return ErrDamaged
				}
				task.Threads, packed = append(task.Threads, int(value)), packed[n:]
			}
		}
		return nil
	})
	if len(task.Threads) <= 1 {
		// As the thread of a zombie criu writes no number, but what is in its memory.
		task.Threads = []int{task.PID}
	}
	return task, err
}

// field reads a number from the only entry of an image, by the fields that lead to it.
func field(dir, name string, path ...protowire.Number) (uint64, error) {
	entries, err := readEntries(dir, name)
	if err != nil {
		return 0, err
	}
	if len(entries) != 1 {
		return 0, imageError(dir, name, fmt.Errorf("%w: it holds %d entries instead of one", ErrDamaged, len(entries)))
	}
	message, found := entries[0], uint64(0)
	for _, wanted := range path {
		var next []byte
		err := eachField(message, func(number protowire.Number, value uint64, bytes []byte) error {
			if number == wanted {
				found, next = value, bytes
			}
			return nil
		})
		if err != nil {
			return 0, imageError(dir, name, err)
		}
		message = next
	}
	return found, nil
}

// eachField visits the fields of a message: numbers by their value, others by their bytes.
func eachField(message []byte, visit func(number protowire.Number, value uint64, bytes []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return ErrDamaged
		}
		message = message[n:]
		var value uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return ErrDamaged
		}
		message = message[n:]
		if err := visit(number, value, bytes); err != nil {
			return err
		}
	}
	return nil
}

const maxBytes = 64 << 20 // of an image

// readEntries reads the entries of an image: its magic number (one word or two), and then
// entries that each follow their size.
func readEntries(dir, name string) ([][]byte, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, imageError(dir, name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxBytes {
		return nil, imageError(dir, name, ErrDamaged)
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil {
		return nil, imageError(dir, name, err)
	}
	const common, service = 0x54564319, 0x55105940
	word := func() (uint32, bool) {
		if len(data) < 4 {
			return 0, false
		}
		value := binary.LittleEndian.Uint32(data)
		data = data[4:]
		return value, true
	}
	if magic, has := word(); !has || magic == common || magic == service {
		if _, has := word(); !has {
			return nil, imageError(dir, name, ErrDamaged)
		}
	}
	var entries [][]byte
	for len(data) > 0 {
		size, has := word()
		if !has || uint64(size) > uint64(len(data)) {
			return nil, imageError(dir, name, fmt.Errorf("%w: it is cut off", ErrDamaged))
		}
		entries, data = append(entries, data[:size]), data[size:]
	}
	return entries, nil
}

func imageError(dir, name string, err error) error {
	return fmt.Errorf("image %s: %w", filepath.Join(dir, name), err)
}
