package cudackpt

import (
	"bytes"
	"testing"
	"unsafe"
)

func TestArgumentLayoutIsThatOfTheDriver(t *testing.T) {
	var (
		lock      lockArgs
		restore   restoreArgs
		pair      cGPUPair
		process   nvmlProcessInfo
		nvmlBytes nvmlMemory
	)
	for _, row := range []struct {
		what      string
		got, want uintptr
	}{
		{"sizeof LockArgs", unsafe.Sizeof(lock), 64},
		{"LockArgs.timeoutMs", unsafe.Offsetof(lock.timeoutMillis), 0},
		{"sizeof LockArgs.timeoutMs", unsafe.Sizeof(lock.timeoutMillis), 4},
		{"sizeof CheckpointArgs", unsafe.Sizeof(checkpointArgs{}), 64},
		{"sizeof UnlockArgs", unsafe.Sizeof(unlockArgs{}), 64},
		{"sizeof RestoreArgs", unsafe.Sizeof(restore), 64},
		{"RestoreArgs.gpuPairs", unsafe.Offsetof(restore.pairs), 0},
		{"RestoreArgs.gpuPairsCount", unsafe.Offsetof(restore.pairsCount), 8},
		{"sizeof RestoreArgs.gpuPairsCount", unsafe.Sizeof(restore.pairsCount), 4},
		{"RestoreArgs.reserved", unsafe.Offsetof(restore.reserved), 12},
		{"sizeof GpuPair", unsafe.Sizeof(pair), 32},
		{"GpuPair.oldUuid", unsafe.Offsetof(pair.oldUUID), 0},
		{"GpuPair.newUuid", unsafe.Offsetof(pair.newUUID), 16},
		{"sizeof UUID", unsafe.Sizeof(UUID{}), 16},
		{"sizeof nvmlMemory_t", unsafe.Sizeof(nvmlBytes), 24},
		{"sizeof nvmlProcessInfo_t", unsafe.Sizeof(process), 24},
		{"nvmlProcessInfo_t.usedGpuMemory", unsafe.Offsetof(process.usedGPUMemory), 8},
		{"nvmlProcessInfo_t.gpuInstanceId", unsafe.Offsetof(process.gpuInstanceID), 16},
		{"nvmlProcessInfo_t.computeInstanceId", unsafe.Offsetof(process.computeInstanceID), 20},
	} {
		t.Run(row.what, func(t *testing.T) {
			if row.got != row.want {
				t.Errorf("%s is %d, want %d", row.what, row.got, row.want)
			}
		})
	}
}

// The bytes that the driver reads, for arguments made as the calls make them: all but those of
// the option itself must be zero.
func TestReservedBytesAreZero(t *testing.T) {
	lock := &lockArgs{timeoutMillis: 0x01020304}
	if got, want := bytesOf(lock), append([]byte{4, 3, 2, 1}, make([]byte, 60)...); !bytes.Equal(got, want) {
		t.Errorf("LockArgs is % x, want % x", got, want)
	}
	restore := &restoreArgs{pairsCount: 2}
	if got, want := bytesOf(restore), append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 2}, make([]byte, 55)...); !bytes.Equal(got, want) {
		t.Errorf("RestoreArgs is % x, want % x", got, want)
	}
	for name, got := range map[string][]byte{"CheckpointArgs": bytesOf(&checkpointArgs{}), "UnlockArgs": bytesOf(&unlockArgs{})} {
		if !bytes.Equal(got, make([]byte, 64)) {
			t.Errorf("%s is % x, want zeros", name, got)
		}
	}
}

func TestPairIsTwoRawUUIDs(t *testing.T) {
	d := &Driver{version: 13000, api: completeAPI()}
	a, b := mustUUID(t, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"), mustUUID(t, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f")
	raw, err := d.checkPairs([]GPUPair{{Old: a, New: b}})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 32)
	for i := range want {
		want[i] = byte(i)
	}
	if got := bytesOf(&raw[0]); !bytes.Equal(got, want) {
		t.Errorf("GpuPair is % x, want % x", got, want)
	}
}

func TestResultIgnoresTheUpperHalfOfTheRegister(t *testing.T) {
	register := uint64(0xdeadbeef_00000258)
	if got := result(uintptr(register)); got != ResultNotReady {
		t.Errorf("result is %v, want %v", got, ResultNotReady)
	}
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// completeAPI makes Supports return nil. No call may be made with it.
func completeAPI() checkpointAPI { return checkpointAPI{1, 1, 1, 1, 1, 1} }

func mustUUID(t *testing.T, text string) UUID {
	t.Helper()
	u, err := ParseUUID(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
