package conformance

import (
	"encoding/hex"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"cucriu/cudackpt"
)

// The entry points without the checks of package cudackpt. That package refuses by itself
// what the tests ask of the driver: invalid pids, NULL, reserved bytes, and maps that name
// a GPU twice.

// op is one of the six calls.
type op int

const (
	opState op = iota
	opThread
	opLock
	opCheckpoint
	opRestore
	opUnlock
)

var opNames = [...]string{
	opState:      "cuCheckpointProcessGetState",
	opThread:     "cuCheckpointProcessGetRestoreThreadId",
	opLock:       "cuCheckpointProcessLock",
	opCheckpoint: "cuCheckpointProcessCheckpoint",
	opRestore:    "cuCheckpointProcessRestore",
	opUnlock:     "cuCheckpointProcessUnlock",
}

// arguments is a CUcheckpoint…Args as the driver gets it: 64 bytes.
type arguments [8]uint64

// lockArguments is CUcheckpointLockArgs: the timeout is the first 32 bits.
func lockArguments(timeoutMillis uint32) *arguments { return &arguments{uint64(timeoutMillis)} }

// reservedByte sets the last byte, which every version reserves.
func reservedByte() *arguments { return &arguments{7: 1 << 63} }

// String returns the bytes for the command line of a controller.
func (a *arguments) String() string {
	if a == nil {
		return "null"
	}
	return hex.EncodeToString((*[64]byte)(unsafe.Pointer(a))[:])
}

func parseArguments(text string) (*arguments, error) {
	if text == "null" {
		return nil, nil
	}
	a := new(arguments)
	if n, err := hex.Decode((*[64]byte)(unsafe.Pointer(a))[:], []byte(text)); err != nil {
		return nil, fmt.Errorf("%q is not 64 bytes: %w", text, err)
	} else if n != len(a)*8 {
		return nil, fmt.Errorf("%q has %d bytes instead of 64", text, n)
	}
	return a, nil
}

// uuidPair is CUcheckpointGpuPair.
type uuidPair struct{ from, to cudackpt.UUID }

// pairCount is the index of gpuPairsCount in CUcheckpointRestoreArgs, after the pointer.
const pairCount = 1

// driverCalls holds the addresses of the six calls.
type driverCalls struct {
	library uintptr
	address [len(opNames)]uintptr
}

// openCalls loads the library under the name that cudackpt used.
func openCalls(library string) (*driverCalls, error) {
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	d := &driverCalls{library: handle}
	for op, name := range opNames {
		if d.address[op], err = purego.Dlsym(handle, name); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// exports reports whether the library has a symbol.
func (d *driverCalls) exports(name string) bool {
	address, err := purego.Dlsym(d.library, name)
	return err == nil && address != 0
}

// call makes one call and blocks for as long as the driver does. If args is nil, it passes
// NULL. If pairs is not nil, it becomes the list of a restore, and its length is written
// unless args already has one.
func (d *driverCalls) call(op op, pid int32, args *arguments, pairs []uuidPair) (result cudackpt.Result, out uint32) {
	var pinner runtime.Pinner
	defer pinner.Unpin()
	second := unsafe.Pointer(args)
	switch {
	case op == opState || op == opThread:
		second = unsafe.Pointer(new(uint32))
	case pairs != nil && args != nil:
		first := unsafe.SliceData(pairs)
		pinner.Pin(first)
		args[0] = uint64(uintptr(unsafe.Pointer(first)))
		if len(pairs) > 0 && args[pairCount] == 0 {
			args[pairCount] = uint64(len(pairs))
		}
	}
	r, _, _ := purego.SyscallN(d.address[op], uintptr(pid), uintptr(second))
	if op == opState || op == opThread {
		out = *(*uint32)(second)
	}
	return cudackpt.Result(uint32(r)), out
}
