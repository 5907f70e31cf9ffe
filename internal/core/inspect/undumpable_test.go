package inspect

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

func look(t *testing.T, pid int) *snapshot {
	t.Helper()
	tree, err := inventory.Of([]int{pid})
	if err != nil {
		t.Fatal(err)
	}
	return &snapshot{tree}
}

// TestMPTCPSocketsAreFound, and those of TCP are not taken for some.
func TestMPTCPSocketsAreFound(t *testing.T) {
	if enabled, err := os.ReadFile("/proc/sys/net/mptcp/enabled"); err != nil || strings.TrimSpace(string(enabled)) != "1" {
		t.Skip("this kernel has no MPTCP, so no job can use it here")
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		for _, multipath := range []bool{false, true} {
			var config net.ListenConfig
			config.SetMultipathTCP(multipath)
			listener, err := config.Listen(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if is := look(t, os.Getpid()).judge().Has(preflight.FindingUnsupportedFile); is != multipath {
				t.Errorf("%s, MPTCP %v: found %v", address, multipath, is)
			}
			listener.Close()
		}
	}
}

// TestSocketsThatAnOldCriuCannotDump are those of which it asks what the kernel does not tell, and those of others are not
// taken for some.
func TestSocketsThatAnOldCriuCannotDump(t *testing.T) {
	for name, family := range map[string]int{"UNIX": unix.AF_UNIX, "TCP": unix.AF_INET} {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED)
		hidden := errors.Is(err, unix.EOPNOTSUPP) // on Linux 6.16 and newer
		if hidden && family == unix.AF_UNIX {
			t.Errorf("%s: %v", name, err)
		}
		socket := os.NewFile(uintptr(fd), name)
		cmd := exec.Command("sleep", "1000")
		cmd.ExtraFiles = []*os.File{socket}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s := look(t, cmd.Process.Pid)
		for version, want := range map[string]bool{"4.1.1": hidden, "4.2": false} {
			if found := s.socketFindings(version); found.Has(preflight.FindingCriuVersion) != want {
				t.Errorf("%s, CRIU %s: %v, want some: %v", name, version, found, want)
			}
		}
		socket.Close()
		_, _ = cmd.Process.Kill(), cmd.Wait()
	}
}

// TestProcessesOfOthersNeedACapability of whoever dumps them.
func TestProcessesOfOthersNeedACapability(t *testing.T) {
	capabilities, err := proc.Capabilities()
	if err != nil {
		t.Fatal(err)
	}
	has := capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0
	for name, test := range map[string]struct {
		credential *syscall.Credential
		foreign    bool
	}{
		"our own":          {&syscall.Credential{Uid: 0, Gid: 0}, false},
		"of another user":  {&syscall.Credential{Uid: 1000, Gid: 0}, true},
		"of another group": {&syscall.Credential{Uid: 0, Gid: 1000}, true},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sleep", "1000")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: test.credential}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
			if is := look(t, cmd.Process.Pid).judge().Has(preflight.FindingOtherUser); is != (test.foreign && !has) {
				t.Errorf("found %v, and CAP_SYS_RESOURCE is there: %v", is, has)
			}
			status, err := proc.ReadStatus(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			if is := foreignTo(status, 0, 0, 0) != ""; is != test.foreign {
				t.Errorf("without the capability: %v", is)
			}
			if foreignTo(status, 0, 0, 1<<unix.CAP_SYS_RESOURCE) != "" {
				t.Error("with the capability: refused")
			}
		})
	}
}
