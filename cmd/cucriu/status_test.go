package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/hooks/timeline"
)

// TestARefusalBeforeTheEndOfADumpIsSettledByIt: a restore was tried while the dump was at work.
func TestARefusalBeforeTheEndOfADumpIsSettledByIt(t *testing.T) {
	begun := time.Now()
	r := statusReport{
		Sessions: []checkpoint.Status{{
			Session: "dump-1-1", Kind: checkpoint.KindDump, Begun: begun, Step: "dumped", Outcome: checkpoint.OutcomeDumped,
			Phases: timeline.Phases{{Name: "checkpoint", Start: 1, Seconds: 9}},
		}},
		Refusals: []checkpoint.Refusal{{Kind: checkpoint.KindRestore, Last: begun.Add(5 * time.Second), Message: "it does not exist"}},
	}
	if err := r.verdict("/i"); err != nil {
		t.Error(err)
	}
	r.Refusals[0].Last = begun.Add(11 * time.Second)
	if err := r.verdict("/i"); err == nil || !strings.Contains(err.Error(), "was refused") {
		t.Errorf("a restore that was refused after the dump: %v", err)
	}
}

// TestAMissingCurrentDirectoryIsExplained, as after a dump into it.
func TestAMissingCurrentDirectoryIsExplained(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	_, err := filepath.Abs("x")
	if text := errorText(errors.Join(err)); err == nil || !strings.Contains(text, `cd "$PWD"`) {
		t.Error(text)
	}
	if findings := image.PresentFindings("."); len(findings) != 1 || findings[0].Remedy != `cd "$PWD"` {
		t.Errorf("an image in it: %v", findings)
	}
}

// TestALimitOfFileSizesIsNamed: the system's own text says nothing of limits.
func TestALimitOfFileSizesIsNamed(t *testing.T) {
	for _, err := range []error{&os.PathError{Op: "write", Path: "/i/pages", Err: unix.EFBIG}, errors.New("criu failed: File too large")} {
		if text := errorText(err); !strings.Contains(text, "ulimit -f") {
			t.Error(text)
		}
	}
}
