// Package preflight finds beforehand what would make a dump or a restore fail or lose
// the job: in this machine, in the processes of a job, in an image. It changes nothing
// and knows no session. What it has to say are findings, each with a name, the process
// that it is about, and a remedy; errors among them are refusals ([RefusedError]), and
// some can be overridden by their names.
//
// [InspectTree] looks at a whole job, [Host] at the machine and at what it would do
// with an image. What only a running or locked process tells is asked for by [Measure],
// [Peers] and [StateFindings].
package preflight
