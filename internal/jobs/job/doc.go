// Package job knows how the first process of a job is started so that the job can be dumped
// later, and which signals its starter passes on. It knows nothing of checkpoints.
package job
