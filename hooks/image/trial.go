package image

import "time"

// TrialOutcome says how the trial restore of an image went.
type TrialOutcome string

// The outcomes of a trial restore.
const (
	TrialRestores TrialOutcome = "restores"
	TrialFails    TrialOutcome = "cannot be restored"
	// TrialNone says nothing about the image: there was no trial, or its sandbox made it fail.
	TrialNone TrialOutcome = "not tried"
)

// Trial says whether a trial restore has shown that an image can be restored.
type Trial struct {
	At      time.Time    `json:"at"`
	Outcome TrialOutcome `json:"outcome"`
	Why     string       `json:"why,omitempty"`
	// Kinds is the same for images that hold the same kinds of processes and files.
	Kinds string `json:"kinds,omitempty"`
	// Attempts is how often images of these kinds were not tried.
	Attempts int `json:"attempts,omitempty"`
}

// String says it in words, without the time.
func (t Trial) String() string {
	if t.Why == "" {
		return string(t.Outcome)
	}
	return string(t.Outcome) + ": " + t.Why
}
