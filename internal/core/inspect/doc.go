// Package inspect finds beforehand what would make a dump or a restore fail or lose the job: in this
// machine, in the processes of a job, or in an image. It changes nothing, and must not know sessions.
// Its results are the findings of package preflight.
//
// [Tree] looks at a whole job. [Host] looks at the machine, and at what it would do with an image.
// What shows only in a running or locked process is found by [Measure], [Losses] and [StateFindings].
//
// What processes have open and mapped is read by package inventory, once for all that judge them. judges.go has
// what the root of a tree and an image directory must be, and the table of what is looked for in each
// process; what does so is in undumpable.go if criu refuses it, and in unrestorable.go if criu dumps it
// and never restores it. holder.go is about processes that hold GPU devices without CUDA,
// connections.go about what connects the tree with others, sharing.go and peer.go about what the driver
// never restores.
package inspect
