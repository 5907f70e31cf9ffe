package workload

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestARestoreDividesNoPort with a program that waits there meanwhile, although both allow it (SO_REUSEPORT):
// check and restore refuse it by name, and the image can be restored once the port is free.
func TestARestoreDividesNoPort(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host, p := newOdd(t, "shared-port")
		port, err := os.ReadFile(filepath.Join(p.dir, "port"))
		if err != nil {
			t.Fatal(err)
		}
		images := filepath.Join(t.TempDir(), "images")
		if out, status := cucriu(t, host, "dump", "-t", p.Root(), "-D", images); status != 0 {
			t.Fatalf("cucriu dump: %d\n%s", status, out)
		}
		testenv.Eventually(t, testenv.Soon, "the job is gone", p.Gone)
		share := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
			if controlErr != nil {
				return controlErr
			}
			return err
		}}
		other, err := share.Listen(context.Background(), "tcp4", "127.0.0.1:"+string(port))
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"check", "restore"} {
			if out, status := cucriu(t, host, command, "-D", images); status != refused || !strings.Contains(out, "tcp-address") || !strings.Contains(out, "127.0.0.1:"+string(port)) {
				t.Errorf("cucriu %s: %d\n%s", command, status, out)
			}
		}
		other.Close()
		if out, status := cucriu(t, host, "restore", "-D", images); status != 0 {
			t.Fatalf("cucriu restore: %d\n%s", status, out)
		}
		p.asItWas()
	})
}
