package proc

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSettingsAreReadAndGivenAgain to a socket that has lost them.
func TestSettingsAreReadAndGivenAgain(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	set := func(value int) {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, value); err != nil {
			t.Fatal(err)
		}
	}
	set(4711)
	settings, err := ownSettings(t)
	if err != nil || settings == nil {
		t.Fatalf("settings %v: %v", settings, err)
	}
	if err := settings.Validate(); err != nil {
		t.Error(err)
	}
	set(0)
	if err := settings.Apply(os.Getpid()); err != nil {
		t.Error(err)
	}
	if value, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); err != nil || value != 4711 {
		t.Errorf("the timeout is %d: %v", value, err)
	}
}

// TestWhatOnlyTheKernelSetsIsNoSetting: the multicast TTL of an accepted connection, for one, is that of its first packet.
func TestWhatOnlyTheKernelSetsIsNoSetting(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		config := net.ListenConfig{Control: plain}
		config.SetMultipathTCP(false)
		listener, err := config.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		client, err := (&net.Dialer{Control: plain}).Dial(network, listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
	}
	if settings, err := ownSettings(t); err != nil || settings != nil {
		t.Errorf("%+v: %v", settings, err)
	}
}

// plain takes back the one option that Go sets and criu restores.
func plain(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) })
}

func TestSettingsThatNoDumpHasWrittenAreRefused(t *testing.T) {
	for name, s := range map[string]Settings{
		"no pid":          {},
		"filter":          {PID: 1, CoredumpFilter: "; reboot"},
		"unknown option":  {PID: 1, Sockets: []SocketSetting{{FD: 3, Option: "SO_MARK", Value: []byte{1}}}},
		"descriptor":      {PID: 1, Sockets: []SocketSetting{{FD: -1, Option: "IP_TTL", Value: []byte{1}}}},
		"long value":      {PID: 1, Sockets: []SocketSetting{{FD: 3, Option: "IP_TTL", Value: make([]byte, maxOptionBytes+1)}}},
		"half a group":    {PID: 1, Sockets: []SocketSetting{{FD: 3, Option: "MCAST_JOIN_GROUP", Value: []byte{1}, Device: "lo"}}},
		"unknown request": {PID: 1, Requests: []Request{{What: "exit"}}},
		"personality":     {PID: 1, Requests: []Request{{What: requestPersonality, Value: "odd"}}},
		"mitigation":      {PID: 1, Requests: []Request{{What: requestNoStoreBypass, Value: "vulnerable"}}},
		"policy":          {PID: 1, Requests: []Request{{What: requestThreadPolicy, Value: "bind:5000"}}},
		"half a page":     {PID: 1, Requests: []Request{{What: requestSeal, Range: Range{Start: 1, End: 4096}}}},
		"backwards":       {PID: 1, Requests: []Request{{What: requestLockOnFault, Range: Range{Start: 8192, End: 4096}}}},
	} {
		if s.Validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// ownSettings reads the settings of this process.
func ownSettings(t *testing.T) (*Settings, error) {
	t.Helper()
	status, err := ReadStatus(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	threads, err := Threads(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	open, err := Descriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var sockets []int
	for fd, link := range open {
		if strings.HasPrefix(link, "socket:") {
			sockets = append(sockets, fd)
		}
	}
	return ReadSettings(os.Getpid(), status, threads, sockets)
}
