package store

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"cucriu/internal/kit/proc"
)

// TestAPIDThatIsSomebodyElsesLeadsToNoStage: nothing is read or removed in the file system of a
// process that has the pid of one that has ended.
func TestAPIDThatIsSomebodyElsesLeadsToNoStage(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*stage)
		isLeft bool
	}{
		"the process is there":     {change: func(*stage) {}, isLeft: true},
		"its pid is another's":     {change: func(r *stage) { r.Of.StartTime-- }},
		"in another pid namespace": {change: func(r *stage) { r.Of.PIDNamespace++ }},
		"before a reboot":          {change: func(r *stage) { r.BootID = "other" }},
		"of an earlier version":    {change: func(r *stage) { r.Of = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			place := exec.Command("sleep", "1000")
			must(t, place.Start())
			defer func() { _, _ = place.Process.Kill(), place.Wait() }()
			id, err := proc.IdentOf(place.Process.Pid)
			must(t, err)
			base, dir := t.TempDir(), filepath.Join(t.TempDir(), "job")
			s := openStore(t, dir)
			path, err := s.StageDir(filepath.Join(fmt.Sprintf("/proc/%d/root", id.PID), base), &id)
			must(t, err)
			real := filepath.Join(base, filepath.Base(path))
			stageImage(t, filepath.Join(real, "image"), 1, newMemory(1, 1))
			record := s.staged[path]
			test.change(&record)
			must(t, stageKind.Write(s.stageRecord(path), record))
			must(t, s.Close())
			s = openStore(t, dir)
			stages, err := s.LeftStages()
			must(t, err)
			removed, err := s.RemoveLeftovers()
			must(t, err)
			want := []string{path}
			if !test.isLeft {
				want = nil
			}
			if !slices.Equal(stages, want) || !slices.Equal(removed, want) {
				t.Errorf("left %q, removed %q; want %q", stages, removed, want)
			}
			if _, err := os.Stat(real); (err == nil) == test.isLeft {
				t.Errorf("the directory: %v", err)
			}
			if _, err := os.Stat(s.stageRecord(path)); err == nil {
				t.Error("the record is left over")
			}
		})
	}
}

// TestAStageGoesWithItsProcess, also for who has made it.
func TestAStageGoesWithItsProcess(t *testing.T) {
	place := exec.Command("sleep", "1000")
	must(t, place.Start())
	id, err := proc.IdentOf(place.Process.Pid)
	must(t, err)
	base := t.TempDir()
	s := openStore(t, filepath.Join(t.TempDir(), "job"))
	path, err := s.StageDir(filepath.Join(fmt.Sprintf("/proc/%d/root", id.PID), base), &id)
	must(t, err)
	must(t, place.Process.Kill())
	_ = place.Wait()
	must(t, s.RemoveStage(path))
	if _, err := os.Stat(s.stageRecord(path)); err == nil {
		t.Error("the record is left over")
	}
}

func TestLeftoversAreRemovedAndNothingElse(t *testing.T) {
	dir, base := filepath.Join(t.TempDir(), "job"), t.TempDir()
	s := openStore(t, dir)
	publish(t, s, 1, newMemory(1, 2))
	inside, err := s.StageDir("", nil)
	must(t, err)
	outside, err := s.StageDir(base, nil)
	must(t, err)
	stageImage(t, filepath.Join(outside, "image"), 2, newMemory(2, 2))
	for _, path := range []string{inside, outside} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Fatalf("%v, %v", info, err)
		}
	}
	partial := s.checkpointDir(partialPrefix + "000002")
	stageImage(t, partial, 3, newMemory(3, 2))
	foreign := filepath.Join(base, stagePrefix+"999") // of another store
	must(t, os.Mkdir(foreign, 0o700))
	kept := filepath.Join(base, "precious")
	must(t, os.Mkdir(kept, 0o700))
	for name, record := range map[string]stage{ // records that somebody has tampered with
		stagePrefix + "1.json": {Path: kept},
		stagePrefix + "2.json": {Path: filepath.Join(kept, "..", stagePrefix+"2", "..", "precious")},
		stagePrefix + "3.json": {Path: "relative/" + stagePrefix + "3"},
		stagePrefix + "4.json": {Path: filepath.Join(base, stagePrefix+"4"), Host: "other", BootID: "other"},
		"4.json":               {Path: kept},
	} {
		if record.Host == "" {
			record.Host, record.BootID = s.owner.Host, s.owner.BootID
		}
		must(t, stageKind.Write(s.path(stagedDir, name), record))
	}
	elsewhere := filepath.Join(base, stagePrefix+"4")
	must(t, os.Mkdir(elsewhere, 0o700))
	must(t, os.WriteFile(s.path(stagedDir, stagePrefix+"5.json"), []byte("{"), 0o600))

	removed, err := s.RemoveLeftovers() // this supervisor lives: its own staging directories stay
	must(t, err)
	if !slices.Equal(removed, []string{partial}) {
		t.Errorf("removed %q", removed)
	}
	must(t, s.Close())
	s = openStore(t, dir) // as after a kill: the next one does not know them
	stages, err := s.LeftStages()
	must(t, err)
	removed, err = s.RemoveLeftovers()
	must(t, err)
	slices.Sort(removed)
	slices.Sort(stages)
	want := []string{inside, outside}
	slices.Sort(want)
	if !slices.Equal(stages, want) {
		t.Errorf("the staging directories %q are left, want %q", stages, want)
	}
	if !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
	for _, path := range []string{foreign, kept, elsewhere} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone", path)
		}
	}
	removed, err = s.RemoveLeftovers()
	if err != nil || len(removed) > 0 {
		t.Errorf("the second time %q was removed, %v", removed, err)
	}
	wantWhole(t, s, "000001")
	if err := s.RemoveStage(kept); err == nil {
		t.Error("removed a directory that is not its own")
	}
}
