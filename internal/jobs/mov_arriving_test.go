package jobs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cucriu/hooks"
	"cucriu/internal/jobs/store"
)

// TestADamagedFileThatASentCheckpointSharesIsFound, so that the next move sends it.
func TestADamagedFileThatASentCheckpointSharesIsFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "job")
	s, err := store.Open(dir, store.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 2 {
		stage, err := s.StageDir("", nil)
		if err != nil {
			t.Fatal(err)
		}
		image := filepath.Join(stage, "image")
		if err := os.Mkdir(image, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(image, "core-1.img"), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := s.Publish(t.Context(), image, store.Info{CreatedAt: time.Now(), Command: "train", RootPID: 1})
		if err == nil {
			err = s.Verify(t.Context(), c, 1, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	listed, err := NewArriving(new(hooks.Hook), dir, "").have()
	if err != nil || len(listed) != 2 {
		t.Fatalf("there are %v, %v", listed, err)
	}
	path := func(name string) string { return filepath.Join(dir, "checkpoints", name, "core-1.img") }
	for _, name := range []string{path("000002"), filepath.Join(filepath.Dir(path("000002")), "verified.json")} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Close(), os.WriteFile(path("000001"), []byte("damaged"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path("000001"), path("000002")); err != nil {
		t.Fatal(err)
	}
	j := NewArriving(new(hooks.Hook), dir, "")
	if j.store, err = store.Open(dir, store.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if _, err := j.Verify(t.Context(), func(name string) bool { return name == listed[1].Name }); err == nil {
		t.Error("the damage is not found")
	}
	if listed, err := NewArriving(new(hooks.Hook), dir, "").have(); err != nil || len(listed) != 0 {
		t.Errorf("the destination says that it has %v, %v", listed, err)
	}
}
