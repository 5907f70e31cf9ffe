// Package soak tests the promise under load. Several jobs of one host are dumped, restored,
// suspended and resumed side by side, while hooks, watchers, commands and criu are killed
// and SIGCONTs are sent to the jobs from outside. In the end each job exists exactly once,
// intact, and nothing of ours is left.
//
// The test leaves out what nobody can promise:
//
//   - criu is killed only while it waits for a hook, or for the command that drives
//     it. While its own code is inside a process, the kill can kill that too.
//   - No process of a job is killed: criu waits for ever for a process that is killed
//     while criu works on it.
//   - The criu that restores the job without CUDA is not killed: such a restore has no
//     journal, and what criu has created waits for criu for ever.
//   - A process that criu traces, or in which it was killed, is not continued: criu does not notice the stop that
//     a SIGCONT then causes. Its dump fails, its restore waits for ever, and rarely the
//     process dies. The job without CUDA is never continued, because criu may seize it
//     at any moment.
//   - A restore that finds a pid taken (EEXIST) is started again.
package soak

import (
	"testing"

	"cucriu/internal/testenv"
)

// The jobs are parallel tests, and all of them must run at the same time.
func TestMain(m *testing.M) { testenv.Main(m, 64) }
