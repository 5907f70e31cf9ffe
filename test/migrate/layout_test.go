package migrate

import (
	_ "embed"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

//go:embed testdata/layout.py
var layout string

// TestMemoryWhoseLayoutChangesMeanwhile moves a job whose processes, areas and pages are others at
// the standstill than when its memory was sent ahead.
func TestMemoryWhoseLayoutChangesMeanwhile(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.StartProgram("python3", "-c", layout)
		w.WaitTicks(p.A, 3)
		p.A.UseFailpoint("migrate.opened=run " + testenv.Script(t, "cd "+w.Dir+" && touch change && until [ -e changed ]; do sleep 0.05; done"))
		r := move(t, w, p.A, p.B, "--precopy")
		if r.Bytes > r.Ahead/2 {
			t.Errorf("%d bytes were sent ahead and %d at the standstill", r.Ahead, r.Bytes)
		}
		move(t, w, p.B, p.A, "--precopy")
	})
}
