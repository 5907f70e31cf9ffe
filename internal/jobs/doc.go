// Package jobs runs long jobs: it starts a job in a sandbox from which it can be resumed anywhere, makes
// checkpoints of it on a schedule and before it is preempted, and resumes it from the newest one
// that is complete. A job is never started anew while there is a checkpoint of it.
//
// The supervisor ([Run]) is outside of the job's sandbox, and keeps nothing that only it knows.
// Killed at any moment, it harms nothing; started again, it attaches to the job that runs.
//
// # The life of a job
//
// What comes next is decided in one file, jobs/life: from a state and an event follow a state and
// actions. All else here acts, in types with one subject each:
//
//	lease         the right to run the job of a directory, on this host and among all
//	supervisor    the loop: takes events, has them decided, begins actions (actions.go)
//	starter       attach to the job; or resume the newest checkpoint that restores, in a new
//	              sandbox; or start the command in a new sandbox; or adopt a process
//	checkpointer  dump into a staging directory while the job is paused; then, while it runs
//	              on, the way to the store; verify, try and remove checkpoints
//	instance      the job as it runs here: its sandbox, its root process, and what is done in the
//	              sandbox by a program of ours that is started there (jobs/inside)
//	control       what people ask for, over a socket
//	reporter      the log of events, cucriu status, metrics, and what the user is told
//
// core is what they share. An action that takes time runs beside the loop, one at a time, and
// reports back as an event.
package jobs
