// Package commit knows the commit protocol of a migration: what each side writes down, what it
// may do after that, and who owns the job after any program of it was killed. (A host that crashes takes
// its processes along; the record of a long job survives that.) It is pure: no files, no clocks, no
// goroutines. Its tests check it in every interleaving, and check that the checker finds what is
// wrong with broken variants.
//
//	source                                                  destination
//
//	Undecided  the copy is dumped and held                  Receiving   restores a copy and holds it
//	    │                                                       │ Complete
//	    │ ◄───────────────────── ready ──────────────────── Promised    whatever happens, it stays held
//	    ▼
//	End        the commit point
//	KillCopy
//	    │ ────────────────────── commit ──────────────────► Go
//	    │                                                   LetRun
//	    ▼ ◄───────────────────── running ──────────────────
//	Close                                                   Close
//
//	Undecided                                               Receiving, Promised
//	    │ anything but ready: a failure, control lost,          │
//	    ▼ the program killed, an interrupt                      │
//	Back                                                        │
//	BringBack                                                   ▼
//	    │ ────────────────────── abort ───────────────────► Dropped     also if it fails while Receiving
//	    │                                                   KillCopy
//	    ▼ ◄───────────────────── ended ────────────────────
//	Close                                                   Close
//
// # How it is used
//
// Each side keeps its state in its journal. Whoever has an event takes the lock of the record,
// reads the state, calls HandleEvent, writes the next state to the disk (fsync), and lets go of the lock.
// Then it does the actions, in their order, each after the one before has succeeded. A state that
// was read before the lock was taken must not be used.
//
// Several programs may do this at the same time: the one that began the migration, a watcher, a
// recover, and at the destination one for each request to settle. Each may be killed after the
// write and after every action. The same actions are then asked for again by the next event. So
// every action must do nothing if what it asks for is so already. [Close] says who may do it, and
// what holds after it.
//
// A living program has its own deadlines. [Recover] makes a side give up that has not decided, so
// it is for records whose program has gone or hangs.
//
// # Why one copy goes on, and never two
//
// The source alone decides, and once: Undecided becomes Back or End, and these never change. So
// all that it ever says about a migration is the same, over any connection, late or twice. A
// commit and an abort of one migration do not both exist.
//
// Never two. The destination lets its copy run only in Go, and only commit leads there. Commit is
// said only after the source's copy was killed, and that only in End. A source in End never brings
// its copy back. While the source is in Undecided or Back nobody has said commit. Nor does an old
// copy go on at the destination: the source's copy runs again only in Back, and then commit will
// never be said.
//
// Never none. The source's copy is killed only in End. End needs ready, and ready is said only in
// Promised. A destination that has promised ends its copy only after abort, which a source in End
// never says. A destination that has not promised may end its copy, for the source then has its
// own, and brings it back.
//
// It comes to an end. A source that has decided says so until it hears the answer: the program
// that began, or a recover at any later time. An Undecided one becomes Back as soon as its watcher
// or a recover looks. So a destination waits only while nobody can reach it.
//
// # A person
//
// A destination that has promised and cannot be told is in doubt. A person can decide there
// instead, and the protocol then relies on what the person has seen: [WhenToTake], [WhenToDrop].
// What is asked for there does not change again, so it does not matter how long the person takes.
package commit
