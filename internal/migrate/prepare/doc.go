// Package prepare finds out, before a migration touches anything, whether a job can move from one
// host to another. The source describes the job ([Describe]) and judges whether it can leave
// ([JudgeSource]); the destination judges whether it can come ([Judge]). Each has its own machine
// and configuration before it. [Report] holds what both have said, as one table.
//
// Nothing here changes anything, on either host. The sizes, counts and paths that come from the other
// host are checked before they are used: see [Job.Validate] and [Judgement.Validate].
//
// A finding is one of package preflight's, with a section in docs/limits.md.
package prepare
