package inside

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// TestMessagesNameProcessesAsTheyAreOutside the sandbox, and remedies, too; other numbers stay.
func TestMessagesNameProcessesAsTheyAreOutside(t *testing.T) {
	p := PIDs{1002: 7981, 1003: 7982, 7981: 9000}
	for text, want := range map[string]string{
		"process 1002 (cudawork): is locked: cucriu unlock -p 1002 lets it run": "process 7981 (cudawork): is locked: cucriu unlock -p 7981 lets it run",
		"its processes 1002, 1003 and 1004 run: kill 1002 1003":                 "its processes 7981, 7982 and 1004 run: kill 7981 7982",
		"kill -9 1003":                               "kill -9 7982",
		"look at /proc/1002/root/dev":                "look at /proc/7981/root/dev",
		"process 1002 has 1003 files, 1002 bytes":    "process 7981 has 1003 files, 1002 bytes",
		"subprocess 1002, --port 1002, x-p 1002, 12": "subprocess 1002, --port 1002, x-p 1002, 12",
	} {
		if got := p.outside(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	var said bytes.Buffer
	log := slog.New(told{slog.NewTextHandler(&said, nil), toldBefore(nil), p})
	log.Warn("process 1002 waits", "pid", 1003, "size", 1003, "error", errors.New("process 1003: no"))
	if want := `msg="process 7981 waits" pid=7982 size=1003 error="process 7982: no"`; !strings.Contains(said.String(), want) {
		t.Errorf("the log says %s; want %s", &said, want)
	}
}
