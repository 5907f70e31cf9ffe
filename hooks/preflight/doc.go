// Package preflight finds beforehand what would make a dump or a restore fail or lose the job:
// in this machine, in the processes of a job, or in an image. It changes nothing, and must not
// know sessions. Its results are findings. Each has a name, the process that it is about, and a
// remedy. Findings that are errors are refusals ([RefusedError]); the user can override some of
// them by their names.
//
// [InspectTree] looks at a whole job. [Host] looks at the machine, and at what it would do with
// an image. What shows only in a running or locked process is found by [Measure], [PeerFindings] and
// [StateFindings].
//
// look.go reads what processes have open and mapped, once for all that judge them. A finding's name
// is in names.go. What looks for it is in inspect.go if it is about a CUDA process, in holder.go if
// about another that holds GPU devices, in undumpable.go if criu cannot dump the process, in
// unsupported.go, unrestorable.go and removed.go if it shows in what a process has open or mapped,
// in connections.go if in what connects it with others, and in sharing.go, nccl.go, peer.go,
// resources.go or machine.go. A new finding also needs a section in docs/limits.md, which a test
// demands.
package preflight
