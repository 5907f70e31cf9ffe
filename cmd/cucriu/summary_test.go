package main

import (
	"strings"
	"testing"
)

// TestARestoredJobThatIsStoppedIsSaidToBe: it was stopped before its dump, and whoever waits for it must continue it.
func TestARestoredJobThatIsStoppedIsSaidToBe(t *testing.T) {
	s := summary{Verb: "restore", RootPID: 42, ImagesDir: "/i", Outcome: "running", Processes: 1, stopped: true}
	const says = "restored process 42 from /i, stopped as at the dump (kill -CONT 42 continues it): 1 CUDA process"
	if text := s.String(); !strings.HasPrefix(text, says) {
		t.Errorf("%q does not begin with %q", text, says)
	}
	s.stopped = false
	if text := s.String(); !strings.HasPrefix(text, "restored process 42 from /i: 1 CUDA process") {
		t.Error(text)
	}
}
