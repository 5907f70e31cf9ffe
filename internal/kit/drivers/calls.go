package drivers

import "golang.org/x/sys/unix"

// Call is a system call, with those of its arguments that a filter may look at.
type Call struct {
	Number    int
	Arguments []uint64
}

// Calls are the system calls that libcuda makes in a process that it checkpoints, restores and unlocks, on
// its own threads, as traced on 580.159.04: a filter that ends the process for sched_yield lost the job in the middle
// of a checkpoint (docs/measurements/2026-11-29-filters-h200.md). On arm64, where nothing was traced, they are those
// that take the place of amd64's.
var Calls = append([]Call{
	{Number: unix.SYS_IOCTL},
	{Number: unix.SYS_MMAP, Arguments: []uint64{
		0, 1 << 20, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, 1<<64 - 1,
	}},
	{Number: unix.SYS_MPROTECT, Arguments: []uint64{0, 1 << 20, unix.PROT_READ | unix.PROT_WRITE}}, // malloc, of a thread
	{Number: unix.SYS_MUNMAP, Arguments: []uint64{0, 1 << 20}},
	{Number: unix.SYS_READ},
	{Number: unix.SYS_WRITE},
	{Number: unix.SYS_OPENAT},
	{Number: unix.SYS_CLOSE},
	{Number: unix.SYS_FSTAT},
	{Number: unix.SYS_FUTEX},
	{Number: unix.SYS_RESTART_SYSCALL},
	{Number: unix.SYS_RT_SIGACTION},
	{Number: unix.SYS_SCHED_YIELD},
	{Number: unix.SYS_GETPID},
	{Number: unix.SYS_FCNTL},
	{Number: unix.SYS_PIPE2},
	{Number: unix.SYS_DUP3},
	{Number: unix.SYS_EVENTFD2},
}, callsHere...)
