// Package migrate moves a running job to another host. Whatever fails, at most one copy runs, and one
// survives unless the host fails that holds it.
//
//	source (cucriu migrate)                    destination (cucriu receive)
//	begin     ssh DESTINATION cucriu receive   hello: versions, certificates
//	prepare   describe the job, judge it here  judge it there: nothing is touched yet
//	perform   open the way for the data        listen, for the pinned source only
//	          (pre-copy: dump it, let it run on, send that)
//	          dump it and hold it; send        receive into memory
//	finish                                     restore it and hold it, promise: ready
//	confirm   end the copy here: commit        let it run: running
//
// Package commit knows who may do what, and proves that one copy survives. Each side has one driver
// of it, for process trees and for long jobs: source.go and receive.go. The states of a process tree
// are the holds of the hooks' sessions: see watch.Decide. A program that is killed leaves the
// decision to its watcher or, once the destination has promised, to the source: [Recover] tells the
// destination what was decided.
//
// The source's copy stays stopped and parked, with its GPU state in an image in memory, until
// the destination has everything. So the way back needs neither the network nor a disk.
//
// A long job moves another way, as checkpoints: see job_source.go. All that this package knows of long jobs is
// [jobs.Leaving] at the source, [jobs.Arriving] at the destination, and the record of a move, [jobs.Move].
package migrate
