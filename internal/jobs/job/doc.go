// Package job knows how the first process of a job is started so that the job can be dumped later: whose
// it is, its GPUs, its environment, its system calls; and which signals its starter passes on. It knows
// nothing of stores and schedules.
package job
