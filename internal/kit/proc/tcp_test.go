package proc

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
)

func TestTCPSocketsAreRead(t *testing.T) {
	for listen, dial := range map[string]string{"127.0.0.1:0": "127.0.0.1", "[::1]:0": "::1", "[::]:0": "127.0.0.1"} {
		listener, err := net.Listen("tcp", listen)
		must(t, err)
		defer listener.Close()
		at := listener.Addr().(*net.TCPAddr).AddrPort()
		conn, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(dial), at.Port()).String())
		must(t, err)
		defer conn.Close()
		served, err := listener.Accept() // our end may know of the connection before the other one
		must(t, err)
		defer served.Close()
		sockets, err := TCPSockets(os.Getpid())
		must(t, err)
		local, remote := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		for name, is := range map[string]func(TCPSocket) bool{
			"the listener": func(s TCPSocket) bool { return s.Local == at && s.Listening() && !s.Connected() && s.Inode > 0 },
			"our end": func(s TCPSocket) bool {
				return s.Local == local && s.Remote == remote && s.Connected() && !s.Listening()
			},
			"the other end": func(s TCPSocket) bool { return s.Local == remote && s.Remote == local && s.Connected() },
		} {
			if !slices.ContainsFunc(sockets, is) {
				t.Errorf("%s, connected from %v: %s is not among %v", listen, local, name, sockets)
			}
		}
	}
}
