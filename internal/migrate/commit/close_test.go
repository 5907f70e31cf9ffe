package commit

import (
	"slices"
	"testing"
)

// TestASourceForgetsNothingUnheard: its record says where the job is until the destination has said what it did. Of a
// job that has left, that it is not known there says nothing.
func TestASourceForgetsNothingUnheard(t *testing.T) {
	heard := map[SourceState][]Event{Undecided: {Ended, Unknown}, Back: {Ended, Unknown}, End: {Running}}
	for state, closing := range heard {
		for _, e := range []Event{Ready, Failed, ControlLost, Recover, ProgramGone, Ended, Unknown, Running} {
			_, do, err := state.HandleEvent(e)
			if err != nil {
				continue // it cannot happen
			}
			if closes := slices.Contains(do, Close); closes != slices.Contains(closing, e) {
				t.Errorf("%s: %s: %v", state, e, do)
			}
		}
	}
}
