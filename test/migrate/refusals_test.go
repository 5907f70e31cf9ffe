package migrate

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/test/hosts"
)

// TestWhatCannotMoveIsRefused at once, by one clear error, and nothing is touched.
func TestWhatCannotMoveIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		w := p.A.Start(1, "--mib", "8", "--loaders", "1")
		j := startJob(t, p, p.A)
		w.Prepare(p.B)
		begin := map[*hosts.Host]traces{p.A: tracesOn(t, w, p.A), p.B: tracesOn(t, w, p.B)}

		here := testenv.Script(t, "shift; exec \"$@\"") // drops the name of the host
		var child, inPlace hosts.Process
		for _, q := range w.All(p.A) {
			if q.PID != w.PID {
				child = q
			}
		}
		for _, q := range j.roots(p.A) {
			inPlace = q
		}
		t.Log(child, inPlace)
		for name, c := range map[string]struct {
			args   []string
			status int
			says   string
		}{
			"itself":           {[]string{"-t", w.Root(), "--to", "b", "--rsh", here}, 3, "XX"},
			"itself, long job": {[]string{"--job", "train", "--to", "b", "--rsh", here}, 3, "XX"},
			"nobody":           {[]string{"-t", "13999", "--to", "b"}, 3, "does not exist"},
			"a child":          {[]string{"-t", strconv.Itoa(child.PID), "--to", "b"}, 3, "XX"},
			"init":             {[]string{"-t", "1", "--to", "b"}, 3, "XX"},
			"in a long job":    {[]string{"-t", strconv.Itoa(inPlace.PID), "--to", "b"}, 3, "XX"},
			"its supervisor":    {[]string{"-t", supervisorOf(t, p.A), "--to", "b"}, 3, "XX"},
			"no long job":      {[]string{"--job", "nothing", "--to", "b"}, 3, "XX"},
		} {
			out, err := p.A.Try("cucriu", append([]string{"migrate"}, c.args...)...)
			if status := exitStatus(err); status != c.status || !strings.Contains(out, c.says) {
				t.Errorf("%s: exit status %d: %s", name, status, out)
			}
		}
		w.Is(p.A)
		j.is(p.A)
		for h, want := range begin {
			settled(t, "host "+h.Name, want, func() traces { return tracesOn(t, w, h) })
		}
		fmt.Fprint(os.Stderr)
	})
}

// TestStatusShowsAHeldJob on both hosts.
func TestStatusShowsAHeldJob(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		w := newWorld(t, "cuda")
		m := w.begin(t, "migrate.ready", "")
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		for _, h := range w.Hosts() {
			t.Log(h.Run("cucriu", "status"))
		}
		m.goOn()
		if status := m.status(); status != 0 {
			t.Errorf("exit status %d", status)
		}
		for _, h := range w.Hosts() {
			t.Log(h.Run("cucriu", "status"))
		}
		w.is(w.end(t))
	})
}
