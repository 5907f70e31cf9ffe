package jobs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestTheRemedyForAnotherCommand is to remove a job that has failed and has no checkpoint.
func TestTheRemedyForAnotherCommand(t *testing.T) {
	dir := t.TempDir()
	if err := (record{Version: recordVersion, Name: "train", Dir: dir, Command: []string{"old"}}).write(dir); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		if _, _, err := openRecord(Options{Dir: dir, Command: []string{"new"}}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	const goOn = "is the directory of another job: old: name another --dir, or leave out the command to continue that job"
	says(goOn + ", or remove it with cucriu jobs rm train")
	testenv.WriteFile(t, filepath.Join(dir, eventsName), `{"event":"started"}`+"\n"+`{"event":"ended","status":7}`+"\n")
	says("old: it ended with exit status 7 and has no checkpoint: remove it with cucriu jobs rm train, or name another --dir")
	if err := os.MkdirAll(filepath.Join(dir, "checkpoints", "000001"), 0o700); err != nil {
		t.Fatal(err)
	}
	says(goOn)
}
