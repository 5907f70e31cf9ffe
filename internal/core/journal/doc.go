// Package journal knows the record that is kept of a dump, a restore or a suspend. It is
// written ahead of every step, so that after a hook was killed, another process can bring the
// job to a good end. A [Record] is what is on disk, with a version. A [Session] is an open
// record; its lock says that somebody is at work on it. Sessions lie in the run directory. The
// package must not decide what happens to a job, and signals nobody. record.go has the format
// and the steps.
package journal
