package inspect

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

func judge(t *testing.T, pid int) preflight.Findings {
	t.Helper()
	s, err := snapshotOf([]int{pid})
	if err != nil {
		t.Fatal(err)
	}
	return s.judge()
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
			if is := judge(t, os.Getpid()).Has(preflight.FindingUnsupportedFile); is != multipath {
				t.Errorf("%s, MPTCP %v: found %v", address, multipath, is)
			}
			listener.Close()
		}
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
			if is := judge(t, cmd.Process.Pid).Has(preflight.FindingOtherUser); is != (test.foreign && !has) {
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
