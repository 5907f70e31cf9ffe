package logging

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// TestALogThatCannotBeWrittenKeepsNothingFromBeingDone: its directory may be on a disk that is not mounted, when a job
// is to be restored.
func TestALogThatCannotBeWrittenKeepsNothingFromBeingDone(t *testing.T) {
	stderr := os.Stderr
	defer func() { os.Stderr = stderr }()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = w
	missing := filepath.Join(t.TempDir(), "gone", "log")
	log := NewCommand(Options{File: missing, Level: slog.LevelWarn})
	log.Warn("and it works on")
	Stderr().Flush()
	Stderr().Flush()
	w.Close()
	said := new(bytes.Buffer)
	if _, err := said.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"warning: nothing is written to the log file", "log.file", missing, "and it works on"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q does not say %q", said, want)
		}
	}
}

// TestALineForPeopleObeysNoJob: what a job has named is in it, and may be what a terminal obeys.
func TestALineForPeopleObeysNoJob(t *testing.T) {
	entry := &logrus.Entry{Level: logrus.WarnLevel, Message: "process 7 (a\x1b[2J)", Data: logrus.Fields{"error": errors.New("open /a\rb"), "path": "/\x07"}}
	line, err := plain{}.Format(entry)
	if want := `cucriu: warning: process 7 (a\x1b[2J): open /a\rb (path /\a)` + "\n"; err != nil || string(line) != want {
		t.Errorf("%q, %v, want %q", line, err, want)
	}
}
