// Package hooks makes stock CRIU dump and restore processes that use NVIDIA
// GPUs. It is what criu's action script runs, and what follows up after criu
// has gone.
//
// Four measured facts decide the protocol. A CPU thread that synchronizes
// with the GPU while its process is checkpointed dies with SIGSEGV, so no
// thread of a CUDA process runs between checkpoint and completed restore. The
// driver works through one thread of the target, the restore thread, and waits
// for ever if that thread is stopped. For lock and unlock that thread is not
// enough: the driver waits for ever for one of its other threads, or for one
// that was stopped inside the driver, so the processes run while they are locked
// and unlocked. After a failed dump, and after a failed post-resume, criu calls
// nobody and reports nothing.
//
// The dump side, all of it in criu's pre-dump stage, where the processes still
// run (dump.go, dump_lock.go and fastlane_dump.go, one function a step):
//
//	claim       the image directory (claim.go)
//	inspect     walk the tree; errors among the findings → refuse here, nothing touched
//	watch       journal into the run directory; start the watcher
//	thaw        a control group that the container engine froze
//	lock        all CUDA processes, all or none: who is ahead is held until the others have caught up
//	stop        SIGSTOP to the whole tree; wait until every thread is in state T, and
//	            until nobody is left who could make new processes
//	park        every thread but the restore threads (park.go): no SIGCONT runs it now;
//	            look for new processes once more
//	trace       PTRACE_SEIZE and PTRACE_CONT the restore threads alone
//	checkpoint  all of them in parallel
//	            into memory that the stopped threads make ready (prefault.go)
//	release     PTRACE_INTERRUPT, PTRACE_DETACH: everything is in the group-stop
//	copy        the fast lane (fastlane.go): the staging memory into files, on disk; begun
//	            for each process as soon as its checkpoint is over, and awaited here
//	drop        it in the processes, with the journal saying so ahead
//	freeze      what the engine had frozen, and a v1 freezer that criu will seize
//	            through, then SIGCONT
//	manifest    into the image directory, atomically
//
// criu then seizes and dumps. In its post-dump stage, before it kills the
// processes (or not), all that the manifest names must still be there, and the image
// as it was written (whole.go); and before
// it lets go of them, then and in network-unlock, they are sent a SIGSTOP: one that
// was only frozen must not run checkpointed when it is thawed. The watcher
// (watch.go) waits for criu's end: a target that is gone was dumped, a target
// that lives is brought back to running. It is started before the first
// process is touched, because this program, too, may be killed at any step. A
// container that was paused it leaves paused, and brings the GPU state back when
// the engine resumes it (paused.go).
//
// The restore side (restore.go):
//
//	pre-restore  the checks that need no process, the GPU map, the watcher;
//	             a failure → criu creates nothing
//	pre-resume   SIGSTOP every process: queued, nothing runs before it takes effect
//	post-resume  all tasks are restored and in the group-stop: bring them up;
//	             a failure → SIGKILL the tree: the image is intact, and a
//	             half-restored job must not run
//
// A session is taken on by its criu's hook and by its watcher, and by others only
// when both are gone (Recover in watch.go). Processes are known by their start times
// and their pid namespace; what another namespace has begun is left to that. A second
// call of a stage by the same criu does nothing (once.go). In a pid namespace that
// criu has entered, the watcher does the stages (inside.go).
//
// The stages reach us in one of three ways: as criu's action script (hook.go),
// behind go-criu's callbacks (notify.go), or from a criu that we drive over its
// RPC ourselves (drive.go, drive_dump.go, drive_restore.go). Only the last learns
// how criu ended. It takes the session to its end at once, where the others leave
// that to the watcher, and its image directory is complete or absent: at post-dump,
// with the processes still held by criu, the image is brought to disk and given
// its name (imagedir.go).
//
// There is one way back for everybody (bringup.go), whatever state the
// processes are in:
//
//	stop         SIGSTOP, out of a freezer too;     ┐
//	             what was borrowed is returned      │ only from the checkpoint on
//	park         who is not parked yet              │ (before it nothing need be
//	trace        the restore threads alone          │  stopped)
//	restore      fill in what was dropped, trace;   │
//	             with GPU pairs, or none, and only  │
//	             if there is free memory for it     │
//	release                                         ┘
//	unpark       every thread is itself again
//	continue     SIGCONT; what stays stopped runs under trace
//	unlock       with every thread running
//	release      what stays stopped
//	others       SIGCONT the processes without CUDA
//	pause        freeze what was frozen before (not in the watcher)
//
// An operator's suspend (suspend.go) goes the way of a dump as far as release,
// without criu: its session stays open, and the processes stopped, until resume
// takes them the one way back. The watcher is there while either is at work.
//
// A stop is no hold: anybody's SIGCONT ends it, and a checkpointed process dies of
// it. So from the stop on, through criu's dump and restore, until nothing is
// checkpointed any more, every thread of the tree but the restore threads is parked:
// its registers make it wait for ever, with its signals blocked, if it is continued,
// and its own are in the session's directory and in the manifest. Nobody needs to
// stay for that, and there is no gap between us and criu. A process that cannot be
// parked is held by its stop alone, and a warning says so.
//
// A failing dump, the watcher, resume, and the recover command all take it; on the
// restore side it has GPU pairs. A process that was stopped before we came
// stays stopped after we leave.
package hooks
