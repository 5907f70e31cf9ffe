package migrate

import (
	"os"
	"path/filepath"
	"testing"
)

func TestADamagedRecordHidesNoOther(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "run [1]*") // no pattern
	r := &record{ID: "0123456789abcdef", Host: "b", RSH: []string{"ssh"}, Remote: "cucriu"}
	if err := r.create(runDir); err != nil {
		t.Fatal(err)
	}
	defer r.unlock()
	damaged := filepath.Join(recordsDir(runDir), "0000000000000000.json")
	if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	records, err := pendingRecords(runDir)
	if err == nil || len(records) != 1 || records[0].ID != r.ID {
		t.Fatalf("records %v, error %v: want one of each", records, err)
	}
}

func TestARecordIsTakenOnlyFromAProgramThatHasGone(t *testing.T) {
	runDir := t.TempDir()
	r := &record{ID: "0123456789abcdef", Host: "b", RSH: []string{"ssh"}, Remote: "cucriu"}
	if err := r.create(runDir); err != nil {
		t.Fatal(err)
	}
	again, err := pendingRecords(runDir)
	if err != nil || len(again) != 1 {
		t.Fatal(again, err)
	}
	if free, err := again[0].tryLock(); err != nil || free {
		t.Errorf("taken from a program that is at work: %v", err)
	}
	r.unlock()
	if free, err := again[0].tryLock(); err != nil || !free {
		t.Errorf("not taken: %v", err)
	}
	if err := again[0].remove(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(recordsDir(runDir)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
