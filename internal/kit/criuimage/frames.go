package criuimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/magic"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
)

// maxImageBytes is the largest image that is read as a whole. Page images are never read.
const maxImageBytes = 64 << 20

// readFrames reads the parts of an image: its magic number (one word or two), and then, up to its
// last byte, entries that each follow their size. kind is the name of the magic number. crit would
// read the missing bytes of a cut-off image as zeros, and allocate as much as a size in it says.
func readFrames(dir, name, kind string) (head []byte, entries [][]byte, err error) {
	f, err := open(dir, name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxImageBytes) {
		err = fmt.Errorf("it is not a regular file of at most %d bytes", maxImageBytes)
	}
	var data []byte
	if err == nil {
		data = make([]byte, info.Size())
		_, err = io.ReadFull(f, data)
	}
	if err == nil {
		head, entries, err = divideFrames(data, kind)
	}
	if err != nil {
		return nil, nil, damaged(dir, name, err)
	}
	return head, entries, nil
}

func divideFrames(data []byte, kind string) (head []byte, entries [][]byte, err error) {
	rest := data
	word := func() uint32 {
		if len(rest) < 4 {
			err, rest = errCutOff, nil
			return 0
		}
		value := binary.LittleEndian.Uint32(rest)
		rest = rest[4:]
		return value
	}
	known := magic.LoadMagic()
	number := uint64(word())
	if number == known.ByName["IMG_COMMON"] || number == known.ByName["IMG_SERVICE"] {
		number = uint64(word())
	}
	head = data[:len(data)-len(rest)]
	switch found := known.ByValue[number]; {
	case err != nil || found == kind:
	case found == "":
		err = errors.New("it has no image header")
	default:
		err = fmt.Errorf("it is of kind %s, not %s", found, kind)
	}
	for err == nil && len(rest) > 0 {
		size := word()
		if uint64(size) > uint64(len(rest)) {
			err = errCutOff
			break
		}
		entries, rest = append(entries, rest[:size]), rest[size:]
	}
	return head, entries, err
}

// readImage reads all entries of an image.
func readImage[T proto.Message](dir, name, kind string) ([]T, error) {
	_, entries, err := readFrames(dir, name, kind)
	if err != nil {
		return nil, err
	}
	var empty T
	messages := make([]T, len(entries))
	for i, entry := range entries {
		messages[i] = empty.ProtoReflect().New().Interface().(T)
		if err := proto.Unmarshal(entry, messages[i]); err != nil {
			return nil, damaged(dir, name, err)
		}
	}
	return messages, nil
}

// readEntry reads an image that holds one entry.
func readEntry[T proto.Message](dir, name, kind string) (entry T, err error) {
	entries, err := readImage[T](dir, name, kind)
	if err == nil && len(entries) != 1 {
		err = damaged(dir, name, fmt.Errorf("it holds %d entries instead of one", len(entries)))
	}
	if err != nil {
		return entry, err
	}
	return entries[0], nil
}

var errCutOff = errors.New("it is truncated")

func open(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, missing(dir, name, err)
	}
	return f, nil
}

func damaged(dir, name string, err error) error {
	if durable.HostRemedy(err) != "" {
		return fmt.Errorf("image: %w", err)
	}
	return fmt.Errorf("image %s is damaged: %w", filepath.Join(dir, name), err)
}

func missing(dir, name string, err error) error {
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("image: %w", err)
	}
	return fault.Because(err, filepath.Join(dir, name)+" is missing: the image is incomplete", "copy the image again from its source, or restore another one")
}
