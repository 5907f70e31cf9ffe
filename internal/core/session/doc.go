// Package session has a session of the journal at work: its steps, written ahead and timed; the
// claim on its image directory; its watcher as a process; the tree of processes that it names; and
// what became of them, in words. It knows criu only as a process. It must not know the driver, nor
// what the steps do. [Env] is what all sessions of a program have in common.
package session
