// Package soak proves the promise in a crowd: several jobs of one host are dumped,
// restored, suspended and resumed side by side, while hooks, watchers, commands and
// criu are killed and somebody continues the jobs from outside. In the end each job
// is there once, whole, and nothing of ours is left.
//
// What nobody can promise is kept out:
//
//   - criu is killed only while it waits for a hook, or for the command that drives
//     it. While its own code is inside a process, the kill can kill that too.
//   - Nobody kills a process of a job: criu waits for ever for one that is killed
//     while criu works on it.
//   - The criu that restores the job without CUDA is not killed: there is no journal
//     of such a restore, and what criu has created waits for it for ever.
//   - Nobody continues a process that criu traces: criu takes no notice of the stop
//     that a SIGCONT makes of it then. Its dump fails, its restore waits for ever, and
//     rarely the process dies. Nobody continues the job without CUDA at all, which
//     criu may seize at any moment.
//   - A restore that finds a pid taken (EEXIST) is begun again.
package soak

import (
	"flag"
	"os"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The jobs are parallel tests, and all of them are to be under way at once.
	if err := flag.Set("test.parallel", "64"); err != nil {
		os.Exit(2)
	}
	testenv.Main(m)
}
