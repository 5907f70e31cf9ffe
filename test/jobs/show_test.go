package jobs

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestAJobIsShownWithWhatItRuns: its command, options, user, output and the pid of its command, which is not
// that of cucriu run. At its first start one line says what is set in its environment.
func TestAJobIsShownWithWhatItRuns(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		a := newAsked(t, "--keep", "2")
		var shown struct {
			Command, Options []string
			User, Log        string
			JobPID           int `json:"job_pid"`
		}
		a.is("running")
		a.cucriu(0, "of the command", "jobs", "show", "train")
		if err := json.Unmarshal([]byte(a.cucriu(0, "", "jobs", "show", "train", "--json")), &shown); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(shown.Command, a.command) || !slices.Contains(shown.Options, "--keep=2") || shown.User != "root" || shown.Log != filepath.Join(a.dir, "output.log") {
			t.Errorf("%+v", shown)
		}
		if got := testenv.CommandLine(shown.JobPID); !slices.Equal(got, a.command) {
			t.Errorf("process %d is %q, want %q", shown.JobPID, got, a.command)
		}
		a.finish()
		if set := a.saidLines("set in the job's environment: "); len(set) != 1 || !strings.Contains(set[0], "GODEBUG=") || !strings.Contains(set[0], "-v says why") {
			t.Errorf("%q", set)
		}
		if why := a.saidLines("leaves it out)"); len(why) > 0 {
			t.Errorf("said without -v: %q", why)
		}
	})
}

// saidLines are the lines of the supervisor that have this text.
func (a *asked) saidLines(text string) (lines []string) {
	for line := range bytes.Lines(a.said.Bytes()) {
		if strings.Contains(string(line), text) {
			lines = append(lines, string(line))
		}
	}
	return lines
}
