package hosts

import (
	"testing"

	"cucriu/internal/testenv"
)

// TestTerminalsOpenWhereADeviceIsHidden: places of long jobs hide GPUs in the same way.
func TestTerminalsOpenWhereADeviceIsHidden(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{WithoutSSH: true, A: HostOptions{Hide: []string{"/dev/full"}}})
		if out, err := p.A.Try("ls", "/dev/full"); err == nil {
			t.Fatalf("it is not hidden: %s", out)
		}
		p.A.Run("sh", "-c", "exec 3<>/dev/ptmx")
	})
}
