// Package migrate tests live migration between two hosts, with real criu, on simulated GPUs.
package migrate

import (
	"testing"

	"cucriu/internal/testenv"
	"cucriu/test/hosts"
)

func TestMain(m *testing.M) { hosts.Main(m) }

func TestThereAndBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "64", "--loaders", "2")
		watch := w.Watch()
		for range 2 {
			move(t, w, p.A, p.B)
			move(t, w, p.B, p.A)
		}
		watch.Stop()
	})
}

// move migrates a work, and fails the test unless it is there afterwards.
func move(t *testing.T, w *hosts.Work, from, to *hosts.Host, args ...string) {
	t.Helper()
	w.Is(from)
	w.Prepare(to)
	out := from.Run("cucriu", append([]string{"migrate", "-t", w.Root(), "--to", to.Name, "--copy-files", "changed"}, args...)...)
	t.Logf("%s", out)
	w.Is(to)
}
