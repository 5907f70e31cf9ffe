package tcp

import (
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// TestConnectionsUnderRepairGoOn as they were: one that does not block must not block afterwards.
func TestConnectionsUnderRepairGoOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root repairs connections")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	raw, err := here.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := control(here.(*net.TCPConn), func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) }); err != nil {
		t.Fatal(err)
	}
	self, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	held, err := Held([]*proc.Process{self})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if len(held.sockets) != 1 || held.ends[0].local.String() != here.LocalAddr().String() || held.ends[0].remote.String() != listener.Addr().String() {
		t.Fatalf("found %v, want that from %v to %v", held.ends, here.LocalAddr(), listener.Addr())
	}
	if err := held.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Write([]byte("text")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(there, make([]byte, 4)); err != nil {
		t.Error(err)
	}
	var flags int
	_ = raw.Control(func(fd uintptr) { flags, err = unix.FcntlInt(fd, unix.F_GETFL, 0) })
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("the socket blocks now: flags %#x %v", flags, err)
	}
}

func TestASetHasBothEndsOfAConnection(t *testing.T) {
	e := ends{addressOf(&unix.SockaddrInet4{Addr: [4]byte{10, 77, 0, 1}, Port: 0x1234}), addressOf(&unix.SockaddrInet4{Addr: [4]byte{10, 77, 0, 2}, Port: 80})}
	if want := "\x0a\x4d\x00\x01\x12\x34\x00\x00\x0a\x4d\x00\x02\x00\x50\x00\x00"; string(e.key()) != want {
		t.Errorf("%q, want %q", e.key(), want)
	}
}
