// Package journal knows what is written down of a dump, a restore or a suspend: ahead
// of every step, so that whoever comes after a hook that was killed can take the job to
// a good end. A [Record] is what is on disk, with a version; a [Session] is one that is
// open, with the lock that says that somebody is at work on it. They lie in the run
// directory. The package decides nothing and signals nobody.
package journal
