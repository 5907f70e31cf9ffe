// Package inject has stopped threads of other processes run what their program does
// not: their own code under trace, remote system calls, or an endless wait. Every
// thread is in one of these states, and each way out of the group-stop leads back
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
//	                         ◀─ Unpark ─────┘ SIGCONT in an endless futex wait
//
// The first two last as long as the tracer does: if this program is killed, the
// kernel detaches, and a thread falls back into the group-stop. A borrowed thread then
// still has registers that are not its own, so Borrow writes those to a file first, and
// [ReturnBorrowed] puts them back. A parked thread needs nobody: it stays parked
// whoever is killed, and through criu's dump and restore.
//
// A thread has one tracer. Requests to the kernel must come from the thread that
// seized it, so each Tracer and each Borrowed has an OS thread of its own. The
// package knows nothing of CUDA or CRIU's protocol; of CRIU it knows where its code
// lies in a process that it left half-way.
package inject
