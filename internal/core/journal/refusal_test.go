package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestRefusalsExpire: those of a week ago, and the oldest of too many.
func TestRefusalsExpire(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root keeps refusals")
	}
	dir := filepath.Join(t.TempDir(), "run")
	keep := func(r Refusal) {
		t.Helper()
		if err := KeepRefusal(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() []Refusal {
		t.Helper()
		all, err := Refusals(dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if kept := kept(); kept == nil || len(kept) != 0 {
		t.Fatalf("without a run directory: %v", kept)
	}
	keep(Refusal{Kind: KindRestore, ImageDir: "/old", Message: "no"})
	keep(Refusal{Kind: KindRestore, ImageDir: "/new", Message: "no"})
	keep(Refusal{Kind: KindRestore, ImageDir: "/new", Message: "no"})
	keep(Refusal{Kind: KindRestore, ImageDir: "/new", Message: "another reason"})
	all := kept()
	if len(all) != 3 || all[1].Times != 2 || !all[1].First.Before(all[1].Last) || all[2].Times != 1 {
		t.Fatalf("kept is %+v", all)
	}
	all[0].Last = time.Now().Add(-refusalAge - time.Minute)
	if err := refusalKind.Write(dir, all); err != nil {
		t.Fatal(err)
	}
	if all := kept(); len(all) != 2 || all[0].ImageDir != "/new" {
		t.Errorf("after a week, kept is %+v", all)
	}
	for i := range 2 * keepRefusals {
		keep(Refusal{Kind: KindDump, RootPID: i + 1, Message: fmt.Sprint(i)})
	}
	if all := kept(); len(all) != keepRefusals || all[0].RootPID != keepRefusals+1 {
		t.Errorf("%d are kept, the first of process %d", len(all), all[0].RootPID)
	}
}
