package migrate

import (
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// TestWhatCannotMoveIsRefused at once, by one clear error, and nothing is touched.
func TestWhatCannotMoveIsRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		w := p.A.Start(1, "--mib", "8", "--loaders", "1")
		j := startJob(t, p, p.A)
		w.Prepare(p.B)
		p.A.Run("mkdir", "-m", "777", "/tmp/open")
		ours := p.A.Config("version: 1\nhosts: {c: {map: [{from: {index: 0}, to: {index: 9}}]}}\n")
		p.A.Setenv("CUCRIU_CONFIG", ours)
		wrong := "env CUCRIU_CONFIG=" + p.B.Config("version: 1\nlock: {timout: 10s}\n") + " cucriu"
		asC := testenv.Script(t, "shift; exec ssh b \"$@\"")
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
		thread := ""
		for _, tid := range strings.Fields(p.A.Run("ls", "/proc/"+w.Root()+"/task")) {
			if tid != w.Root() {
				thread = tid
			}
		}
		for name, c := range map[string]struct {
			args   []string
			status int
			says   string
		}{
			"to its own host":           {[]string{"-t", w.Root(), "--to", "b", "--rsh", here}, 3, "error: at the destination: this is the host on which the job runs\n"},
			"a long job, the same":      {[]string{"--job", "train", "--to", "b", "--rsh", here}, 3, "nothing has to be sent"},
			"nobody":                    {[]string{"-t", "13999", "--to", "b"}, 3, "process 13999: does not exist"},
			"a child":                   {[]string{"-t", strconv.Itoa(child.PID), "--to", "b"}, 3, "nothing was touched"},
			"an ancestor":               {[]string{"-t", "1", "--to", "b"}, 3, "process 1 has the long job train below it, which moves as a whole"},
			"a process of a long job":   {[]string{"-t", strconv.Itoa(inPlace.PID), "--to", "b"}, 3, "belongs to the long job train, which moves as a whole: cucriu migrate --job train --to b\n"},
			"who runs a long job":       {[]string{"-t", supervisorOf(t, p.A), "--to", "b"}, 3, "belongs to the long job train, which moves as a whole: cucriu migrate --job train --to b\n"},
			"no long job":               {[]string{"--job", "nothing", "--to", "b"}, 3, `no job on this host is named "nothing"`},
			"nobody reachable":          {[]string{"-t", w.Root(), "--to", "nobody"}, 3, "cannot start cucriu on nobody (exit 255); try: ssh nobody cucriu --version"},
			"without cucriu there":      {[]string{"-t", w.Root(), "--to", "b", "--remote-cucriu", "/nothing/cucriu"}, 3, "/nothing/cucriu is not found on b, in the PATH of a command that ssh runs: install it there, or specify where it is with --remote-cucriu"},
			"not root there":            {[]string{"-t", w.Root(), "--to", "b", "--remote-cucriu", "setpriv --reuid 65534 --clear-groups cucriu"}, 3, "cucriu on b refused, as it says above; if it must run as root there: --to root@b"},
			"a namespace that ends":     {[]string{"-t", w.Root(), "--to", "b", "--remote-cucriu", "unshare --pid --fork --mount-proc cucriu"}, 3, "the job would end with cucriu receive: there is nothing else in its pid namespace there: reach a namespace that stays"},
			"a namespace with a shell":  {[]string{"--job", "train", "--to", "b", "--remote-cucriu", "unshare --pid --fork --mount-proc sh -c '\"$@\"; exit $?' sh cucriu"}, 3, "the job would end with cucriu receive"},
			"a shell that fails":        {[]string{"--job", "train", "--to", "b", "--rsh", "false"}, 3, "cannot start cucriu on b (exit 1); try: false b cucriu --version"},
			"a shell that does nothing": {[]string{"--job", "train", "--to", "b", "--rsh", "true"}, 3, "cannot start cucriu on b (exit 0); try: true b cucriu --version"},
			"a thread":                  {[]string{"-t", thread, "--to", "b"}, 3, "is a thread of process " + w.Root()},
			"a directory for everyone":  {[]string{"-t", w.Root(), "--to", "b", "--stage", "/tmp/open"}, 3, "others may write"},
			"its configuration is wrong": {
				[]string{"-t", w.Root(), "--to", "b", "--remote-cucriu", wrong},
				3,
				"cannot use the configuration of b or its arguments, as it says above; try: ssh b " + wrong + " gpus\n",
			},
			"our configuration is wrong": {
				[]string{"-t", w.Root(), "--to", "c", "--rsh", asC},
				3,
				"on b: the rule on line 2 of " + ours + " on a (from index 0 to index 9)",
			},
		} {
			out, err := p.A.Try("cucriu", append([]string{"migrate"}, c.args...)...)
			if status := testenv.ExitStatus(err); status != c.status || !strings.Contains(out, c.says) {
				t.Errorf("%s: exit status %d: %s", name, status, out)
			}
		}
		w.Is(p.A)
		j.is(p.A)
		for h, want := range begin {
			settled(t, "host "+h.Name, want, func() traces { return tracesOn(t, w, h) })
		}
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
		for h, want := range map[*hosts.Host]string{
			w.from: "on its way to b, and stopped until it is decided where it will run (migration ",
			w.to:   "complete, and stopped until a reports its decision (migration ",
		} {
			if said := h.Run("cucriu", "status"); !strings.Contains(said, want) {
				t.Errorf("cucriu status on host %s says:\n%s", h.Name, said)
			}
		}
		m.goOn()
		if status := m.status(); status != 0 {
			t.Errorf("exit status %d", status)
		}
		for h, want := range map[*hosts.Host]string{w.from: "the job has moved to b (migration ", w.to: "came from a (migration "} {
			if said := h.Run("cucriu", "status"); !strings.Contains(said, want) {
				t.Errorf("cucriu status on host %s says afterwards:\n%s", h.Name, said)
			}
		}
		w.is(w.end(t))
	})
}
