package cudackpt

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// This file holds everything that the package relies on in the driver's ABI: the names of the
// entry points, the layout of their arguments (abi_test.go checks it), and one function for each
// call. Source: cuda.h of CUDA 12.8 to 13.4, LP64 Linux, which is the same for amd64 and arm64.

// Entry points of libcuda.so.1.
const (
	callGetVersion         = "cuDriverGetVersion"
	callGetState           = "cuCheckpointProcessGetState"
	callGetRestoreThreadID = "cuCheckpointProcessGetRestoreThreadId"
	callLock               = "cuCheckpointProcessLock"
	callCheckpoint         = "cuCheckpointProcessCheckpoint"
	callRestore            = "cuCheckpointProcessRestore"
	callUnlock             = "cuCheckpointProcessUnlock"
)

// argsSize is the size in bytes of every CUcheckpoint…Args on LP64, in every version so far.
const argsSize = 64

// lockArgs is CUcheckpointLockArgs. The reserved bytes must be zero.
type lockArgs struct {
	timeoutMillis uint32   // 0 = wait forever
	_             [60]byte // reserved
}

// checkpointArgs is CUcheckpointCheckpointArgs. CUDA 13.4 gave the reserved bytes a meaning
// (pointers to custom storage), and older drivers refuse or misread them. So they stay zero,
// which every version reads as "no options".
type checkpointArgs struct {
	_ [argsSize]byte // reserved
}

// restoreArgs is CUcheckpointRestoreArgs as of CUDA 13.0. In 12.8 all of it is reserved, so
// pairs are sent only to a driver that knows them.
type restoreArgs struct {
	pairs      *cGPUPair
	pairsCount uint32
	reserved   [52]byte
}

// unlockArgs is CUcheckpointUnlockArgs.
type unlockArgs struct {
	_ [argsSize]byte // reserved
}

// cGPUPair is CUcheckpointGpuPair: two CUuuid of 16 raw bytes.
type cGPUPair struct {
	oldUUID [16]byte
	newUUID [16]byte
}

// checkpointAPI holds the addresses of the six calls. An address is 0 if the library does not
// export the call.
type checkpointAPI struct {
	getState, getRestoreThreadID, lock, checkpoint, restore, unlock uintptr
}

// resolve looks up the six calls. It is no error if one is missing: a driver older than 570 can
// still tell its version and its GPUs.
func (api *checkpointAPI) resolve(handle uintptr) {
	for name, address := range map[string]*uintptr{
		callGetState:           &api.getState,
		callGetRestoreThreadID: &api.getRestoreThreadID,
		callLock:               &api.lock,
		callCheckpoint:         &api.checkpoint,
		callRestore:            &api.restore,
		callUnlock:             &api.unlock,
	} {
		*address = symbol(handle, name)
	}
}

// complete reports whether all six calls were found.
func (api *checkpointAPI) complete() bool {
	return api.getState != 0 && api.getRestoreThreadID != 0 && api.lock != 0 &&
		api.checkpoint != 0 && api.restore != 0 && api.unlock != 0
}

// The raw calls block their thread for as long as the driver takes. Everything that C is given
// a pointer to is on the heap and lives until the call returns. For SyscallN's arguments the
// directive go:uintptrescapes on it ensures that; what they point to is pinned.

func rawGetVersion(fn uintptr) (int32, Result) {
	version := new(int32)
	r, _, _ := purego.SyscallN(fn, uintptr(unsafe.Pointer(version)))
	return *version, result(r)
}

// raw makes a call with a process and a pointer to its arguments, or to its answer.
func raw[T any](fn uintptr, pid int32, data *T) Result {
	r, _, _ := purego.SyscallN(fn, uintptr(pid), uintptr(unsafe.Pointer(data)))
	return result(r)
}

func (api *checkpointAPI) rawGetState(pid int32) (uint32, Result) {
	state := new(uint32)
	r := raw(api.getState, pid, state)
	return *state, r
}

func (api *checkpointAPI) rawGetRestoreThreadID(pid int32) (int32, Result) {
	tid := new(int32)
	r := raw(api.getRestoreThreadID, pid, tid)
	return *tid, r
}

func (api *checkpointAPI) rawLock(pid int32, timeoutMillis uint32) Result {
	return raw(api.lock, pid, &lockArgs{timeoutMillis: timeoutMillis})
}

func (api *checkpointAPI) rawCheckpoint(pid int32) Result {
	return raw(api.checkpoint, pid, new(checkpointArgs))
}

func (api *checkpointAPI) rawRestore(pid int32, pairs []cGPUPair) Result {
	args := new(restoreArgs)
	var pinner runtime.Pinner
	defer pinner.Unpin()
	if len(pairs) > 0 {
		args.pairs, args.pairsCount = &pairs[0], uint32(len(pairs))
		pinner.Pin(args.pairs)
	}
	return raw(api.restore, pid, args)
}

func (api *checkpointAPI) rawUnlock(pid int32) Result {
	return raw(api.unlock, pid, new(unlockArgs))
}

// result takes the CUresult from a return register. It is a C int, so the upper half of the
// register is undefined.
func result(register uintptr) Result {
	return Result(uint32(register))
}
