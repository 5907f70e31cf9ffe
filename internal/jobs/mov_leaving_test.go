package jobs

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"cucriu/hooks"
	"cucriu/internal/jobs/store"
	"cucriu/internal/testenv"
)

// TestOnlyTheCheckpointInWhichTheJobEndedIsSent: an older one has less of the job's work.
func TestOnlyTheCheckpointInWhichTheJobEndedIsSent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "D")
	view, err := store.Open(dir, store.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	images := t.TempDir()
	testenv.WriteFile(t, filepath.Join(images, "some.img"), "some")
	for range 2 {
		if _, err := view.Publish(t.Context(), images, store.Info{CreatedAt: time.Now(), RootPID: 7}); err != nil {
			t.Fatal(err)
		}
	}
	s := NewLeaving(new(hooks.Hook), Local{Dir: dir})
	if err := s.requireNewest("000002"); err != nil {
		t.Error(err)
	}
	if err := s.requireNewest("000001"); err == nil {
		t.Error("there is a newer one")
	}
	if err := view.GiveUp("000002", errors.New("no")); err != nil {
		t.Fatal(err)
	}
	if err := s.requireNewest("000002"); err == nil {
		t.Error("it cannot be used, and the one before would be sent")
	}
}
