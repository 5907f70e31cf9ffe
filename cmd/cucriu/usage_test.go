package main

import (
	"strings"
	"testing"
)

// TestACommandOfAnotherProgramIsExplained, and nobody is sent to rm, which removes a job.
func TestACommandOfAnotherProgramIsExplained(t *testing.T) {
	jobs := jobsCommand()
	for name, want := range map[string]string{
		"ps": ": did you mean list", "kill": ": did you mean stop", "remove": ": did you mean rm", "rmx": "", "pn": ": did you mean pin",
		"start": ": cucriu run --dir DIR -- COMMAND starts a job", "logs": ": what a job prints is in output.log in its directory",
	} {
		if got := didYouMean(jobs, "", name); got != want {
			t.Errorf("jobs %s%s, want %q", name, got, want)
		}
	}
}

// TestAdoptTakesAPid as dump does.
func TestAdoptTakesAPid(t *testing.T) {
	if err := runCommand().ParseFlags([]string{"--adopt", "abc"}); err == nil || !strings.HasSuffix(err.Error(), "a pid is a positive number") {
		t.Error(err)
	}
}
