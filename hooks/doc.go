// Package hooks makes stock CRIU dump and restore processes that use NVIDIA GPUs. criu calls it as
// its action script ([Run]) or through go-criu's callbacks ([Notify]). Package checkpoint drives a
// criu of its own. What happens is in packages of the module, one above the other:
//
//	internal/core/stages   what is done at each stage of criu
//	internal/core/watch    the watcher, and how a session comes to its end: verdict, hold, recover
//	internal/core/engine   lock, stop, park, checkpoint, and the one way back
//	internal/core/session  a session at work, with the processes that it names
//	internal/core/journal  what is written down of a session
//
// Five measured facts decide the protocol (docs/protocol.md explains it).
//
//   - A CPU thread that synchronizes with the GPU while its process is checkpointed dies with
//     SIGSEGV. So no thread of a CUDA process runs between checkpoint and completed restore,
//     except the restore thread.
//   - The driver works through one thread of the target, the restore thread. It waits without
//     end if that thread is stopped.
//   - For lock and unlock the restore thread is not enough. The driver also waits for its other
//     threads, and for any thread that was stopped inside the driver. So the processes run while
//     they are locked and unlocked.
//   - After a failed dump, and after a failed post-resume, criu calls nobody and reports nothing.
//   - The driver checkpoints some jobs, without an error, that it can never restore.
//
// # Dump
//
// All of it happens in criu's pre-dump stage, where the processes still run. (*dump).run in
// internal/core/stages/dump.go reads like this list, with what undoes each step beside it; the undo itself is
// the one way back, below. criu's later stages are in dump_image.go: postDump, networkUnlock.
//
//	claim       lock the image directory
//	inspect     walk the tree; errors among the findings → refuse here, nothing has been touched
//	watch       write the journal; start the watcher
//	thaw        a control group that the container engine froze
//	lock        all CUDA processes, all or none: a process that is ahead is held until the others
//	            have caught up
//	stop        SIGSTOP to the whole tree; wait until every thread is in state T, and until nobody
//	            is left who could make new processes
//	move        where the library of cucriu run --dir is in the job, it moves GPU memory to the
//	            host (internal/core/engine/memory.go, which has the steps; they begin before the lock)
//	park        every thread except the restore threads: no SIGCONT runs it now; look for new
//	            processes once more; link files in use by removed names (package checkpoint alone)
//	children    take the driver's files and mappings from children that were forked from a CUDA
//	            process
//	trace       let the restore threads run, and nothing else
//	checkpoint  all processes in parallel, into memory that stopped threads make ready
//	release     put the restore threads back into the group-stop
//	devices     take from CUDA processes what they still hold of the GPUs without using it
//	copy        the fast lane (internal/core/stages/dump_lanes.go): copy the staging memory into files. The
//	            copy of a process begins as soon as its checkpoint is over; this step waits for all copies
//	drop        make the manifest, note the drop in the journal, and drop the memory
//	freeze      what the engine had frozen, and a v1 freezer that criu will seize through; then
//	            SIGCONT
//	manifest    write it into the image directory, atomically
//
// criu then seizes and dumps. At post-dump, before criu ends the processes or lets them continue,
// every process of the manifest must still be there, and the image must be as it was written; then it is
// synced, and gets its name (publish). Of a tree without CUDA only the commands do that. At
// post-dump and at network-unlock, before criu lets go of the processes, they get a SIGSTOP: a
// process that was only frozen must not run checkpointed when it is thawed.
//
// A suspend goes the same way from lock to release, without criu. Its session stays open and the
// processes stay stopped until a resume takes them the one way back.
//
// The watcher waits until criu has ended. A process that lives is restored, or ended if criu was
// interrupted while it ended the job beside a complete image; one that has gone was dumped, if post-dump
// was reached, and has ended otherwise (dumpVerdict in internal/core/watch). It is started before the first
// process is touched, because this program, too, may be killed at any step. It leaves a paused container
// paused, and restores the GPU state when the engine resumes it.
//
// # Restore
//
//	pre-restore  the checks that need no process, the plan of the GPU map, the watcher; a failure → criu
//	             creates nothing
//	post-restore the image was read once more, beside criu, and is as its checksums say; processes that see other
//	             GPUs than the hook, as in a container, get a plan for these; else criu undoes everything
//	pre-resume   SIGSTOP every process: queued, nothing runs before it takes effect; put back the
//	             CPUs, I/O priority and timer slack of threads
//	post-resume  all tasks are restored and in the group-stop: the one way back, with the plan of the journal
//	             and no other; a failure → kill the tree: the image is unchanged, and a half-restored
//	             job must not run; and kill criu, so that a container engine sees a failure
//
// A restore that was cut off is brought forward, or its tree killed, by the watcher and by recover.
//
// # The one way back
//
// It is the same for everybody (internal/core/engine/back.go): a dump that fails, post-resume, the
// watcher, and the commands unlock, resume and recover take it, from whatever state the processes
// are in. After a restore or a resume there are GPU pairs.
//
//	stop         SIGSTOP, out of a freezer too;     ┐
//	             what was borrowed is returned      │ only from the checkpoint on
//	park         what is not parked yet             │ (before it nothing need be
//	trace        the restore threads alone          │  stopped)
//	restore      fill in what was dropped, trace;   │
//	             with GPU pairs, or none, and only  │
//	             if there is free memory for it     │
//	release                                         │
//	move         the library in the job brings back │
//	             what it has moved                  │
//	hold         a restore that waits for a         │
//	             decision is parked again           │
//	             a restored process asks the kernel │
//	             again for what criu has forgotten  ┘
//	connections  those that criu held back for its dump
//	unpark       what was borrowed of forked children is returned, and
//	             every thread gets its own registers back
//	continue     SIGCONT; what stays stopped runs under trace
//	unlock       with every thread running
//	open         the gate of the library in the job
//	release      what stays stopped
//	others       SIGCONT the processes without CUDA of a restore,
//	             which may fail up to here; else at continue
//	pause        freeze what was frozen before (not in the watcher)
//
// A driver call that was given up may still be under way. Its process waits for it, stopped if GPU state
// is out. Otherwise the rest of the job runs, and uses its GPUs.
//
// A process that was stopped before we came stays stopped after we leave.
//
// # What holds a job
//
// A stop does not hold a job: anybody's SIGCONT ends it, and a checkpointed process dies of it. So
// every thread of the tree except the restore threads is parked, from the stop on, through criu's
// dump and restore, until nothing is checkpointed any more. The registers of a parked thread make
// it wait without end, with its signals blocked, if it is continued. Its own registers are in the
// session's directory and in the manifest, so no program needs to stay for it. If a process cannot
// be parked, its stop alone holds it, and a warning says so. A process without CUDA whose seccomp
// filter forbids the wait is only stopped: it may run without harm.
//
// # Who may touch a session
//
// The journal is written ahead of every step. It does not list what to undo: the step tells
// whether anything may be checkpointed, and the driver and the files of the borrowed threads tell
// the rest. A session belongs to its criu's hook and to its watcher. Others may take it on only
// when criu and the watcher have gone, or after post-resume, when the watcher alone has. Processes
// are known by their start times and their pid namespace. A session that was begun in another pid
// namespace is left to the programs there; before a session begins, the run directories of the
// host and of its sandboxes are looked into. A second call of a stage by the same criu does
// nothing. In a pid namespace that criu has entered, the watcher does the stages.
package hooks
