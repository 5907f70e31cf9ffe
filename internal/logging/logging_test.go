package logging

import (
	"errors"
	"testing"

	"github.com/sirupsen/logrus"
)

// TestALineForPeopleObeysNoJob: what a job has named is in it, and may be what a terminal obeys.
func TestALineForPeopleObeysNoJob(t *testing.T) {
	entry := &logrus.Entry{Level: logrus.WarnLevel, Message: "process 7 (a\x1b[2J)", Data: logrus.Fields{"error": errors.New("open /a\rb"), "path": "/\x07"}}
	line, err := plain{}.Format(entry)
	if want := `cucriu: warning: process 7 (a\x1b[2J): open /a\rb (path /\a)` + "\n"; err != nil || string(line) != want {
		t.Errorf("%q, %v, want %q", line, err, want)
	}
}
