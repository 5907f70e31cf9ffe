// Package sandbox makes the sandbox of a long job, and enters it. A sandbox is a pid, a mount and a
// time namespace. The job runs in it, and criu dumps and restores it from inside, so that criu
// finds no namespace to dump and no mount to restore. In a new sandbox all pids are free, and the
// clocks continue from where they were at the dump.
//
// Three processes make a sandbox:
//
//	stage one ([Unshare])   makes the time namespace and sets its clocks; becomes
//	unshare(1)              makes the pid and the mount namespace, and waits
//	init ([Init])           the first process inside: mounts, starts the job, and then reaps; it
//	                        has the other end of the job's terminal
//
// The job's root process, which is dumped, is a child of init. It is a first process of ours (package
// first) that has started the command, unless the job was started by an earlier version, was adopted, or
// cannot have one.
//
// All of them have a session of their own. Whoever made the sandbox may end, and somebody else may
// [Attach] to it. The end of init ends everything inside. init ends only when it is killed.
//
// A job that was not started by cucriu runs in no sandbox until it resumes from a checkpoint: see
// [Adopt].
//
// The package knows namespaces and processes. It knows nothing of checkpoints.
package sandbox
