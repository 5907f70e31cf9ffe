// Package jobs runs long jobs: it starts a job in a sandbox from which it can go on anywhere, makes
// checkpoints of it on a schedule and before it is preempted, and resumes it from the newest one
// that is whole.
//
// The supervisor ([Run]) is outside of the job's sandbox, and keeps nothing that only it knows.
// Killed at any moment, it harms nothing; started again, it attaches to the job that runs
// (begin.go). What must happen inside the sandbox is done by a program that it starts there
// (inside.go): criu, the hook and the watcher see the job's pids and clocks as the job does.
//
//	begin      attach to the sandbox; or resume the newest checkpoint that restores, in a new
//	           sandbox; or start the command in a new sandbox
//	watch      wait for: the end of the job, the time of a checkpoint, signals, commands
//	checkpoint dump in the sandbox into a staging directory while the job stands still; then,
//	           while it runs on, the way to the store
//	preempt    a last checkpoint, if there is time for it; then the job is ended
//
// A job is never started anew while there is a checkpoint of it.
package jobs
