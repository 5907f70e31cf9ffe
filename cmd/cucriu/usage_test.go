package main

import (
	"strings"
	"testing"
)

// TestAdoptTakesAPid as dump does.
func TestAdoptTakesAPid(t *testing.T) {
	if err := runCommand().ParseFlags([]string{"--adopt", "abc"}); err == nil || !strings.HasSuffix(err.Error(), "a pid is a positive number") {
		t.Error(err)
	}
}
