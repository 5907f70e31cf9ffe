// Package hooks makes stock CRIU dump and restore processes that use NVIDIA
// GPUs. It is what criu's action script runs, and what brings a job back after
// criu has gone.
//
// Four measured facts decide the protocol. A CPU thread that synchronizes
// with the GPU while its process is checkpointed dies with SIGSEGV, so no
// thread of a CUDA process runs between checkpoint and completed restore. The
// driver works through one thread of the target, the restore thread, and waits
// for ever if that thread is stopped. For lock and unlock that thread is not
// enough: the driver also waits for its other threads, and for any thread that
// was stopped inside the driver, so the processes run while they are locked and
// unlocked. After a failed dump, and after a failed post-resume, criu calls
// nobody and reports nothing.
//
// # Dump
//
// All of it happens in criu's pre-dump stage, where the processes still run. Each
// step has a file, named behind it:
//
//	claim       the image directory                                        claim.go
//	inspect     walk the tree; errors among the findings → refuse here,
//	            nothing has been touched                                   dump_inspect.go
//	watch       write the journal; start the watcher                       dump.go, watcher.go
//	thaw        a control group that the container engine froze            dump_freeze.go
//	lock        all CUDA processes, all or none: who is ahead is held
//	            until the others have caught up                            suspension_lock.go, suspension_ranks.go
//	stop        SIGSTOP to the whole tree; wait until every thread is in
//	            state T, and until nobody is left who could make new
//	            processes                                                  dump_stop.go, suspension_stop.go
//	park        every thread but the restore threads: no SIGCONT runs it
//	            now; look for new processes once more                      park.go
//	trace       let the restore threads run, and nothing else              suspension_checkpoint.go
//	checkpoint  all processes in parallel, into memory that stopped
//	            threads make ready                                         suspension_checkpoint.go, prefault.go
//	release     put the restore threads back into the group-stop           suspension_checkpoint.go
//	copy        the fast lane: copy the staging memory into the page
//	            store. Begun for each process as soon as its checkpoint is
//	            over, and awaited here                                     fastlane_copy.go
//	drop        make the manifest, say so in the journal, and drop the
//	            memory in the processes                                    dump_manifest.go, fastlane_drop.go
//	freeze      what the engine had frozen, and a v1 freezer that criu
//	            will seize through; then SIGCONT                           dump_freeze.go
//	manifest    write it into the image directory, atomically              dump_manifest.go
//
// criu then seizes and dumps. In its post-dump stage, before it ends the
// processes (or not), everything that the manifest names must still be there, and the
// image as it was written (dump_after.go). Before criu lets go of the processes, then
// and in network-unlock, they get a SIGSTOP (paused.go): one that was only frozen must
// not run checkpointed when it is thawed.
//
// A suspension (suspension.go) is what a dump shares with an operator's suspend
// (suspend.go), which goes the same way from lock to release, without criu. Its session
// stays open, and the processes stopped, until resume takes them the one way back.
//
// The watcher (watch.go) waits for criu's end. A process that is gone was dumped; one
// that lives is brought back. [dumpVerdict] in conclude_verdict.go decides, and
// conclude.go does it. The watcher is started before the first process is touched,
// because this program, too, may be killed at any step. It leaves a paused container
// paused, and brings the GPU state back when the engine resumes it (paused.go).
//
// # Restore
//
//	pre-restore  the checks that need no process, the GPU map, the watcher;
//	             a failure → criu creates nothing                          restore_pre.go
//	pre-resume   SIGSTOP every process: queued, nothing runs before it
//	             takes effect                                              restore_resume.go
//	post-resume  all tasks are restored and in the group-stop: bring them
//	             up; a failure → kill the tree: the image is intact, and a
//	             half-restored job must not run                            restore_post.go, kill.go
//
// restore_finish.go takes a restore that was cut off to a good end.
//
// # The one way back
//
// It is the same for everybody (bringup.go): a dump that fails, the watcher, resume and
// the recover command take it, from whatever state the processes are in; on the restore
// side it has GPU pairs.
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
// A process that was stopped before we came stays stopped after we leave.
//
// # What holds a job
//
// A stop is no hold: anybody's SIGCONT ends it, and a checkpointed process dies of
// it. So from the stop on, through criu's dump and restore, until nothing is
// checkpointed any more, every thread of the tree but the restore threads is parked.
// Its registers make it wait for ever, with its signals blocked, if it is continued; its
// own registers are in the session's directory and in the manifest. Nobody needs to
// stay for that, and there is no gap between us and criu. A process that cannot be
// parked is held by its stop alone, and a warning says so.
//
// # Who may touch a session
//
// The journal (package journal) is written ahead of every step. A session is taken on by
// its criu's hook and by its watcher, and by others only when both are gone
// (recover.go). Processes are known by their start times and their pid namespace; what
// another namespace has begun is left to those who are there. A second call of a stage by
// the same criu does nothing (once.go). In a pid namespace that criu has entered, the
// watcher does the stages (inside.go).
//
// # How the stages reach us
//
// As criu's action script ([Hook.Run]), behind go-criu's callbacks ([Notify]), or from a
// criu that package checkpoint drives over its RPC ([Hook.Serve]). Only the last learns
// how criu ended: it takes the session to its end at once, where the others leave that to
// the watcher.
package hooks
