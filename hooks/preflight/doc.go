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
// A finding's name is in names.go. What looks for it is in inspect.go if it is about a CUDA
// process, in undumpable.go if criu cannot dump it, in supported.go if it shows in what a process
// has open or mapped, and in nccl.go, peer.go, holdings.go, resources.go or machine.go. A new
// finding also needs a section in docs/limits.md, which a test demands.
package preflight
