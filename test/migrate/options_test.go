package migrate

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// TestTheOptionsOfAMigration count, several at once, on hosts without ssh and with next to no
// memory at the usual place for images.
func TestTheOptionsOfAMigration(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{WithoutSSH: true})
		const mib, perSecond = 24, 12 << 20
		w := &world{t: t, Pair: p, from: p.A, to: p.B, work: p.A.Start(1, "--mib", fmt.Sprint(mib))}
		log := "/tmp/asked"
		for _, h := range p.Hosts() {
			h.Run("mkdir", "-p", "/run/stage")
			h.Run("mount", "-o", "remount,size=1m", "/dev/shm")
			testenv.WriteFile(t, h.Path("/tmp/there"), "echo \"$@\" >> "+log+"\nverb=$1\nshift\n"+
				"case \"$*\" in *--relay*) ;; *) set -- --stage /run/stage \"$@\" ;; esac\nexec cucriu \"$verb\" \"$@\"\n")
		}
		way := func() []string {
			return []string{"--rsh", w.from.RSH(), "--remote-cucriu", "sh /tmp/there", "--stage", "/run/stage"}
		}

		p.B.Run("touch", log)
		_ = way()
		before := tracesOn(t, w.work, p.B)
		limited := append(way(), "--bandwidth", fmt.Sprint(perSecond), "--streams", "3")
		w.work.Prepare(p.B)
		r := migrate(t, w.work, p.A, p.B, append(limited, "--dry-run")...)
		if least := time.Second * mib << 20 / perSecond; r.Predicted < least || !r.DryRun || r.Bandwidth > 1.2*perSecond {
			t.Errorf("%v is predicted for %d MiB, want at least %v; %.0f bytes a second", r.Predicted, mib, least, r.Bandwidth)
		}
		if r.MTU != 1500 || r.RoundTrip <= 0 || r.RoundTrip > testenv.Soon {
			t.Errorf("packets of %d bytes, a round trip of %v", r.MTU, r.RoundTrip)
		}
		w.work.Is(p.A)
		settled(t, "host b", before, func() traces { return tracesOn(t, w.work, p.B) })

		m := w.begin(t, "migrate.opened", "", append(limited, "--json")...)
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		testenv.Eventually(t, testenv.Soon, "there are 3 connections for data, and that of the remote shell", func() bool {
			return tracesOn(t, w.work, p.B).Connected == 1+3
		})
		m.goOn()
		if status := m.status(); status != 0 {
			t.Fatalf("exit status %d", status)
		}
		_, text, _ := strings.Cut(m.out.String(), "{")
		if err := json.Unmarshal([]byte("{"+text), &r); err != nil {
			t.Fatal(err)
		}
		if least := time.Duration(float64(r.Bytes) / perSecond * 0.8 * float64(time.Second)); r.Pause < least || r.Bytes < mib<<20 {
			t.Errorf("%d bytes were sent in a pause of %v, want at least %v", r.Bytes, r.Pause, least)
		}
		if asked := p.B.Run("cat", log); strings.Count(asked, "receive\n") != 2 {
			t.Errorf("it was asked there for %q", asked)
		}
		w.is(w.end(t))

		m = w.begin(t, "dump.decided", "", append(way(), "--via", "ssh")...)
		if !m.reached() {
			t.Fatal("the migration ended before")
		}
		killAny(watchers(w.from))
		kill(t, "migrate", migrates(w.from)...)
		m.goOn()
		_ = m.status()
		at := w.end(t) // with the remote shell that was named then
		if at != p.A {
			t.Fatalf("the job is on host %v", at)
		}
		w.is(at)
		if asked := p.A.Run("cat", log); !strings.Contains(asked, "receive --bind 127.0.0.1\n") || !strings.Contains(asked, "receive --relay 127.0.0.1:") {
			t.Errorf("it was asked there for %q", asked)
		}
		for _, h := range p.Hosts() {
			if found, _ := filepath.Glob(h.Path("/run/stage/*")); len(found) > 0 {
				t.Errorf("left: %v", found)
			}
		}
	})
}
