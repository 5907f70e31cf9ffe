// Package first is the first process of a long job: a small static program that starts the command, and is
// the root of what is dumped. It is a subreaper (PR_SET_CHILD_SUBREAPER), so a process of the job whose
// parent has ended becomes its child, and not one of the sandbox's init, outside of the dumped tree. That
// happens by setsid -f, by nohup in a script that ends, in tmux, and in every program that daemonizes.
//
// It runs as the job's user, in a session of its own, beside that of the command, with nothing open but
// /dev/null, and with all signals blocked. It reaps, passes on to the command what signals it gets, and ends with the command's
// status once nothing is left below it. Its name tells which process its command is (see [Of]), so that
// whoever looks knows that after a restore as well.
//
// The program lies in the job's directory and is executed from there, because criu restores its mapping by
// that name. A job keeps the one that it was started with.
package first
