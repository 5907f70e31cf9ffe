// Package inject makes stopped threads of other processes do what their program does
// not: run alone under trace, make system calls for us (remote system calls), or wait
// endlessly. The states of a thread are below; each way out of the group-stop leads back
// into it:
//
//	                        ┌─ Tracer.Run ──▶ runs its own code under trace,
//	                        │                 the rest of its process stays stopped
//	                        │◀─ Release ────┘
//	                        │
//	group-stop (state T) ───┼─ Borrow ──────▶ waits in a ptrace-stop ◀──▶ makes a
//	of the whole process    │                 (state t)                  remote
//	                        │◀─ Return ─────┘                            system call
//	                        │
//	                        └─ Park ────────▶ parked: in the group-stop, and after a
//	                        │◀ReturnThreads─┘ SIGCONT in an endless futex wait
//
// The first two states end with the tracer: if this program is killed, the kernel detaches
// and the thread falls back into the group-stop. A borrowed thread may then still have our
// registers. So Borrow first writes the thread's own registers to a file, and
// [ReturnThreads] puts them back. A parked thread needs no tracer: it stays parked
// whichever process is killed, and through criu's dump and restore.
//
// A thread has one tracer. The kernel takes ptrace requests only from the OS thread that
// seized it, so each Tracer and each Borrowed has an OS thread of its own. The package
// knows nothing of CUDA or of CRIU's protocol. Of CRIU it knows only where its code lies in
// a process whose dump was cut off.
package inject
