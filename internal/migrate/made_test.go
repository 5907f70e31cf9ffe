package migrate

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
)

// TestWhatWasMadeGoesUnlessTheJobMayRunHere: a job that runs never loses its files.
func TestWhatWasMadeGoesUnlessTheJobMayRunHere(t *testing.T) {
	end, wait := journal.EndHere, journal.StayHeld
	for title, tt := range map[string]struct {
		hold     *journal.Hold // nil if there is no session
		outcome  journal.Outcome
		promised bool
		working  bool // who makes them
		torn     bool // a half line is at the end

		stays, recorded bool
	}{
		"killed before the restore":           {},
		"killed while it noted something":     {torn: true},
		"at work":                             {working: true, stays: true, recorded: true},
		"being restored":                      {hold: &journal.Hold{IfAbandoned: end}, stays: true, recorded: true},
		"promised":                            {hold: &journal.Hold{IfAbandoned: wait}, promised: true, stays: true, recorded: true},
		"stays here":                          {hold: &journal.Hold{IfAbandoned: wait, Decision: journal.RunHere}, promised: true, stays: true},
		"went on here, and has ended":         {hold: &journal.Hold{IfAbandoned: wait, Decision: journal.RunHere}, outcome: journal.OutcomeRunning, promised: true, stays: true},
		"went on here long ago":               {promised: true, stays: true},
		"about to be ended":                   {hold: &journal.Hold{IfAbandoned: wait, Decision: end}, promised: true, stays: true, recorded: true},
		"ended":                               {hold: &journal.Hold{IfAbandoned: wait, Decision: end}, outcome: journal.OutcomeKilled, promised: true},
		"the restore failed":                  {hold: &journal.Hold{IfAbandoned: end}, outcome: journal.OutcomeKilled},
		"the restore failed, to be looked at": {hold: &journal.Hold{IfAbandoned: end}, outcome: journal.OutcomeLeft, stays: true},
	} {
		t.Run(title, func(t *testing.T) {
			const id = "0123456789abcdef"
			hook := &hooks.Hook{Config: config.Default()}
			hook.Config.RunDir = t.TempDir()
			hook = hook.Filled()
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			r := madeRecord{path: filepath.Join(recordsDir(hook.Config.RunDir), id+madeSuffix)}
			defer r.close()
			for _, base := range []string{"a", "a/b"} {
				if err := files.MakeDirectory(filepath.Join(dir, base), 0o700, 0, 0, r.note); err != nil {
					t.Fatal(err)
				}
			}
			if tt.promised {
				if err := r.promise(); err != nil {
					t.Fatal(err)
				}
			}
			if tt.torn {
				if _, err := r.file.WriteString(`{"made":{"path":"/tm`); err != nil {
					t.Fatal(err)
				}
			}
			if tt.hold != nil {
				tt.hold.ID = id
				hold(t, hook, tt.hold, tt.outcome)
			}
			if !tt.working {
				r.close()
			}
			if err := removeMade(hook); err != nil {
				t.Error(err)
			}
			if stays := exists(filepath.Join(dir, "a/b")) && exists(filepath.Join(dir, "a")); stays != tt.stays || !stays && exists(filepath.Join(dir, "a")) {
				t.Errorf("what was made is there: %v, want %v", stays, tt.stays)
			}
			if recorded := exists(r.path); recorded != tt.recorded {
				t.Errorf("the record is there: %v, want %v", recorded, tt.recorded)
			}
		})
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// hold makes a session with a hold, as a destination has it.
func hold(t *testing.T, hook *hooks.Hook, h *journal.Hold, outcome journal.Outcome) {
	t.Helper()
	self, err := proc.IdentOf(unix.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	h.Holder = self
	s, err := journal.Create(hook.Config.RunDir, journal.Record{
		Kind: journal.KindRestore, Criu: self, Hold: h, Manifest: &imagedir.Manifest{
			Version: imagedir.ManifestVersion, DriverVersion: "580", RootPID: 1, Processes: []imagedir.Process{{PID: 1, Name: "job", GPUs: []cudackpt.GPU{{UUID: cudackpt.UUID{1}}}}},
		},
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Unlock()
	s.Outcome = outcome
	if err := s.Save(); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.FindHeld(hook, h.ID); err != nil {
		t.Fatal(err)
	}
}
