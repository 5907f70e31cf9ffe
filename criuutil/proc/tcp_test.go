package proc

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTCPSocketsAreRead(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the lines are those of a little-endian kernel")
	}
	const rest = " 00000000:00000000 00:00000000 00000000 0 0 77 1 0 20 4 0 10 -1"
	for line, want := range map[string]TCPSocket{
		"0: 0100007F:1F90 00000000:0000 0A": {State: unix.BPF_TCP_LISTEN, Local: netip.MustParseAddrPort("127.0.0.1:8080"), Remote: netip.MustParseAddrPort("0.0.0.0:0"), Inode: 77},
		"1: 00000000000000000000000001000000:0016 B80D0120000000000000000001000000:C001 01": {
			State: 1, Local: netip.MustParseAddrPort("[::1]:22"), Remote: netip.MustParseAddrPort("[2001:db8::1]:49153"), Inode: 77,
		},
		"2: 0000000000000000FFFF00000100007F:0016 0000000000000000FFFF00000100007F:C001 06": {
			State: 6, Local: netip.MustParseAddrPort("127.0.0.1:22"), Remote: netip.MustParseAddrPort("127.0.0.1:49153"), Inode: 77,
		},
	} {
		got, err := parseTCP(line + rest)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", line, got, err, want)
		}
		if got.Connected() != (want.State == 1) || got.Listening() != (want.State == unix.BPF_TCP_LISTEN) {
			t.Errorf("%s: it is connected: %v, listening: %v", line, got.Connected(), got.Listening())
		}
	}
	for _, line := range []string{"", "0: 1:2 3:4", "0: 0100007F 00000000:0000 0A" + rest, "0: 01007F:1F90 00000000:0000 0A" + rest, "0: 0100007F:1F90 00000000:0000 XX" + rest} {
		if s, err := parseTCP(line); err == nil {
			t.Errorf("%q was read as %+v", line, s)
		}
	}
}
