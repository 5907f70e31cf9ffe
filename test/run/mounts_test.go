package run

import (
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestAMountOfTheJobIsNotLost: its sandbox ends with it. What is mounted there before is the host's.
func TestAMountOfTheJobIsNotLost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := emptyWorld(t)
		w.command = []string{"sh", "-c", `cd "$0"; mkdir at; mount -t tmpfs none at; : >at/file; : >begun; until [ -e free ]; do sleep 0.1; done; umount at; : >freed; until [ -e stop ]; do sleep 0.1; done`, w.work}
		w.flags = []string{"--every", "0"}
		r := w.run()
		r.awaits("it is mounted", func() bool { return testenv.Exists(filepath.Join(w.work, "begun")) })
		out, err := w.host.Cucriu("jobs", "stop", w.dir)
		if err == nil || !strings.Contains(out, "has mounted or unmounted something on "+filepath.Join(w.work, "at")) || !strings.Contains(out, "keeps running") {
			t.Fatalf("%v: %s", err, out)
		}
		testenv.WriteFile(t, filepath.Join(w.work, "free"), "")
		r.awaits("it is unmounted", func() bool { return testenv.Exists(filepath.Join(w.work, "freed")) })
		if out, err := w.host.Cucriu("jobs", "stop", w.dir); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		r = w.run()
		r.says("D resumes from checkpoint")
		w.stop(0)
		r.ends(0)
	})
}
