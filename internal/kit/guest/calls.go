package guest

import "golang.org/x/sys/unix"

// Call is a system call, with those of its arguments that a filter may look at.
type Call struct {
	Number    int
	Arguments []uint64
}

const (
	private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	some    = 1 << 20 // bytes
)

// Calls are the system calls that the library's threads make from the time that they are told anything, by themselves
// and in the functions of the driver and the C library that they call. A filter of the program's may be on these
// threads, too. What begins a thread is not among them, since all threads are there from cuInit on (lib/agent.c), nor is
// what only copies on the GPUs and shared memory take: see agent.CanKeep. test/guest has a job that may make no others.
var Calls = []Call{
	{unix.SYS_FUTEX, []uint64{0, 128}}, // FUTEX_WAIT_PRIVATE
	{unix.SYS_FUTEX, []uint64{0, 129}}, // FUTEX_WAKE_PRIVATE
	{unix.SYS_RESTART_SYSCALL, nil},    // a wait that was traced
	{unix.SYS_NANOSLEEP, nil},
	{unix.SYS_CLOCK_NANOSLEEP, nil},
	{unix.SYS_MMAP, []uint64{0, some, unix.PROT_READ | unix.PROT_WRITE, private, noFile, 0}},
	{unix.SYS_MMAP, []uint64{0, some, unix.PROT_READ | unix.PROT_WRITE, private | unix.MAP_NORESERVE, noFile, 0}},
	{unix.SYS_MMAP, []uint64{0, some, unix.PROT_NONE, private | unix.MAP_NORESERVE, noFile, 0}}, // malloc, of a thread
	{unix.SYS_MPROTECT, []uint64{0, some, unix.PROT_READ | unix.PROT_WRITE}},
	{unix.SYS_MUNMAP, []uint64{0, some}},
	{unix.SYS_MADVISE, []uint64{0, some, unix.MADV_HUGEPAGE}},
	{unix.SYS_MADVISE, []uint64{0, some, unix.MADV_DONTFORK}},
	{unix.SYS_CLOSE, []uint64{3}},
	{unix.SYS_IOCTL, []uint64{3}},
}

const noFile = 1<<64 - 1

// CallsOfThreads are what begins a thread, and what one calls first. Libraries older than version 8 begin their threads
// when they are told to prepare.
var CallsOfThreads = []Call{
	{unix.SYS_CLONE3, nil},
	{unix.SYS_CLONE, nil},
	{unix.SYS_RSEQ, nil},
	{unix.SYS_SET_ROBUST_LIST, nil},
	{unix.SYS_GETTID, nil},
	{unix.SYS_PRCTL, []uint64{unix.PR_SET_NAME}},
	{unix.SYS_SCHED_GETAFFINITY, nil},
	{unix.SYS_RT_SIGPROCMASK, nil},
	{unix.SYS_EXIT, nil},
}
