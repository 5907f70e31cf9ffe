// Package hooks makes stock CRIU dump and restore processes that use NVIDIA GPUs. criu's
// action script runs it, and it brings a job back after criu has gone.
//
// Four measured facts decide the protocol.
//
//   - A CPU thread that synchronizes with the GPU while its process is checkpointed dies with
//     SIGSEGV. So no thread of a CUDA process runs between checkpoint and completed restore,
//     except the restore thread.
//   - The driver works through one thread of the target, the restore thread. It waits for ever
//     if that thread is stopped.
//   - For lock and unlock the restore thread is not enough. The driver also waits for its other
//     threads, and for any thread that was stopped inside the driver. So the processes run while
//     they are locked and unlocked.
//   - After a failed dump, and after a failed post-resume, criu calls nobody and reports nothing.
//
// # Dump
//
// All of it happens in criu's pre-dump stage, where the processes still run. Each step is
// listed with its files:
//
//	claim       lock the image directory                                   claim.go
//	inspect     walk the tree; errors among the findings → refuse here,
//	            nothing has been touched                                   dump_inspect.go
//	watch       write the journal; start the watcher                       dump.go, watcher_start.go
//	thaw        a control group that the container engine froze            dump_freeze.go
//	lock        all CUDA processes, all or none: a process that is ahead
//	            is held until the others have caught up                    suspension_lock.go, suspension_lock_ranks.go
//	stop        SIGSTOP to the whole tree; wait until every thread is in
//	            state T, and until nobody is left who could make new
//	            processes                                                  dump_stop.go, suspension_stop.go
//	park        every thread except the restore threads: no SIGCONT runs
//	            it now; look for new processes once more                   park.go
//	children    take the driver's files and mappings from children that
//	            were forked from a CUDA process                            dump_children.go
//	trace       let the restore threads run, and nothing else              suspension_checkpoint.go
//	checkpoint  all processes in parallel, into memory that stopped
//	            threads make ready                                         suspension_checkpoint.go, prefault.go
//	release     put the restore threads back into the group-stop           suspension_checkpoint.go
//	devices     take from CUDA processes what they still hold of the GPUs
//	            without using it: the rest of a look by OpenCL             dump_devices.go
//	copy        the fast lane: copy the staging memory into the page
//	            store. The copy of a process begins as soon as its
//	            checkpoint is over; this step waits for all copies         fastlane_copy.go
//	drop        make the manifest, note the drop in the journal, and drop
//	            the memory in the processes                                dump_manifest.go, fastlane_drop.go, mlocked.go
//	freeze      what the engine had frozen, and a v1 freezer that criu
//	            will seize through; then SIGCONT                           dump_freeze.go
//	manifest    write it into the image directory, atomically              dump_manifest.go
//
// criu then seizes and dumps. At post-dump, before criu ends the processes or lets them go on,
// every process of the manifest must still be there, and the image must be as it was written
// (dump_after.go). At post-dump and at network-unlock, before criu lets go of the processes, they
// get a SIGSTOP (paused.go): a process that was only frozen must not run checkpointed when it is
// thawed. If a step fails, suspension_undo.go takes the processes the way back.
//
// A dump and an operator's suspend (suspend.go) share a suspension (suspension.go). A suspend
// goes the same way from lock to release, without criu. Its session stays open and the processes
// stay stopped until a resume takes them the one way back.
//
// The watcher (watch.go) waits until criu has ended. A process that has gone was dumped; one that
// lives is brought back, or ended if criu was cut off while it ended the job beside a complete
// image. [dumpVerdict] in conclude_verdict.go decides, and conclude_dump.go acts on it. The watcher is started before the first process is touched, because this program, too,
// may be killed at any step. It leaves a paused container paused, and brings the GPU state back
// when the engine resumes it (paused.go).
//
// # Restore
//
//	pre-restore  the checks that need no process, the GPU map, the watcher;
//	             a failure → criu creates nothing                          restore_pre.go
//	pre-resume   SIGSTOP every process: queued, nothing runs before it
//	             takes effect; put back the CPUs, I/O priority and timer
//	             slack of threads                                          restore_resume.go, scheduling.go
//	post-resume  all tasks are restored and in the group-stop: bring them
//	             up; a failure → kill the tree: the image is intact, and a
//	             half-restored job must not run; and kill criu, so that a
//	             container engine sees a failure                           restore_post.go, kill.go, late.go
//
// restore_finish.go brings a restore that was cut off to a good end, for the watcher and for
// recover: forward, or by killing the tree. Only kill.go kills processes of a job. root.go finds
// the root task of a restore whose criu was killed.
//
// # The one way back
//
// It is the same for everybody (bringup.go, bringup_restore.go, fastlane_fill.go): a dump that
// fails, post-resume, the watcher, and the commands unlock, resume and recover take it, from
// whatever state the processes are in. After a restore or a resume there are GPU pairs.
//
//	stop         SIGSTOP, out of a freezer too;     ┐
//	             what was borrowed is returned      │ only from the checkpoint on
//	park         what is not parked yet             │ (before it nothing need be
//	trace        the restore threads alone          │  stopped)
//	restore      fill in what was dropped, trace;   │
//	             with GPU pairs, or none, and only  │
//	             if there is free memory for it     │
//	release                                         ┘
//	unpark       what was borrowed of forked children is returned, and
//	             every thread gets its own registers back
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
// A stop does not hold a job: anybody's SIGCONT ends it, and a checkpointed process dies of it.
// So every thread of the tree except the restore threads is parked. It stays parked from the stop
// on, through criu's dump and restore, until nothing is checkpointed any more. The registers of a
// parked thread make it wait for ever, with its signals blocked, if it is continued. Its own
// registers are in the session's directory and in the manifest. No program needs to stay for
// that, and there is no gap between us and criu. If a process cannot be parked, its stop alone
// holds it, and a warning says so. A process whose seccomp filter forbids the wait is not
// parked. If it does not use CUDA, there is no warning, for it may run without harm.
//
// # Who may touch a session
//
// The journal (package journal) is written ahead of every step. A session belongs to its criu's
// hook and to its watcher. Others may take it on only when criu and the watcher have gone, or
// after post-resume, when the watcher alone has (recover.go). Processes are known by their start
// times and their pid namespace. A session that was begun in another pid namespace is left to
// the programs there. The sandbox of a long job has a run directory in that of the host; before a
// session begins, both are looked into, and processes are known by their own innermost pid namespace. A second call of a stage by the same criu does nothing (once.go). In a pid
// namespace that criu has entered, the watcher does the stages (inside.go).
//
// # How the stages reach us
//
// There are three ways: as criu's action script ([Hook.Run]), through go-criu's callbacks
// ([Notify]), or from a criu that package checkpoint drives over its RPC ([Hook.Serve]). Only
// package checkpoint learns how criu ended. It brings the session to its end at once (finish.go);
// the others leave that to the watcher.
//
// # Other files
//
// What the steps work with: hook.go ([Hook], [Stage]), session.go (a session at work), target.go
// (a CUDA process at hand), threads.go (letting threads run, signals), fastlane.go (pages in the
// journal), localfs.go, stall.go, parallel.go, patience.go (waiting). What became of a job, in
// words: fate.go and status.go; why one was refused: refusal.go. For operators: lock.go,
// suspend.go, processes.go. hold_sockets.go keeps the names of sockets for a job that may stay here. ancestors.go continues a parent that has stopped with the job, and
// partial.go removes what a killed dump left behind.
package hooks
