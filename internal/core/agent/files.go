package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/inject"
)

// MostFiles is how many files [In] can read from, with the list of their pieces: BATCH of rights.h.
const MostFiles = Batch

// callsOfFiles are the system calls of files.c that a program need not make itself.
var callsOfFiles = append(slices.Clone(callsOfKeep),
	inject.Call{Number: unix.SYS_MMAP, Arguments: []uint64{0, 1 << 20, unix.PROT_READ, unix.MAP_PRIVATE, 3, 0}},
	inject.Call{Number: unix.SYS_PREAD64, Arguments: []uint64{3}},
)

// CanReadFiles reports whether [In] can read the memory from files, and may make the system calls that this takes.
func (a *Agent) CanReadFiles(ctx context.Context) error {
	box, err := a.read()
	if err != nil {
		return err
	}
	if box.Version < 9 {
		return errors.ErrUnsupported
	}
	return a.requireAllowed(ctx, callsOfFiles)
}

// SetPieces has the next [In] read so many pieces from files, or none. They are in the socket of [Connect] then, in one
// message: first a file with the pieces, of the form of struct piece of files.h.
func (a *Agent) SetPieces(pieces int) error {
	box, err := a.read()
	if err != nil || box.Version < 9 {
		return err
	}
	return a.process.WriteMemory(binary.LittleEndian.AppendUint64(nil, uint64(pieces)), a.address+uint64(endOf(8)))
}
