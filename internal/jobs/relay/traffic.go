package relay

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/proc"
)

func (r *Relay) accept(listener *net.TCPListener, port uint16) {
	for {
		peer, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(retry)
			continue
		}
		select {
		case r.connections <- struct{}{}:
			r.tasks.Go(func() {
				r.connect(peer, port)
				<-r.connections
			})
		default:
			reset(peer)
		}
	}
}

func (r *Relay) connect(peer *net.TCPConn, port uint16) {
	defer reset(peer) // as a closed port does; after Close it does nothing
	var conn net.Conn
	for _, address := range netns.Loopback(port, *r.others.Load()...) {
		if c, err := r.inside.Load().Dial(r.closed, unix.SOCK_STREAM, address); err == nil {
			conn = c
			break
		}
	}
	if conn == nil {
		return
	}
	job := conn.(*net.TCPConn)
	defer reset(job)
	defer context.AfterFunc(r.closed, func() { reset(peer); reset(job) })()
	var toJob, toPeer atomic.Bool
	var directions sync.WaitGroup
	directions.Go(func() { pass(job, peer, &toJob, &toPeer) })
	directions.Go(func() { pass(peer, job, &toPeer, &toJob) })
	directions.Wait()
	if toJob.Load() && toPeer.Load() {
		_ = peer.Close()
		_ = job.Close()
	}
}

// pass copies one direction of a connection. It sets ended before it passes the end on; back is that of the other
// direction.
func pass(to, from *net.TCPConn, ended, back *atomic.Bool) {
	_, err := io.Copy(to, from)
	switch down := isDown(from); {
	case err == nil && (!down || back.Load()): // once both directions have ended it is down, too
		ended.Store(true)
		_ = to.CloseWrite()
	case down:
		reset(to)
		reset(from) // wakes the other direction
	default:
		// The receiver takes no more. What it has sent before is not lost: the other direction reads it, and then finds
		// the receiver down, even if the kernel has told the error to us only.
	}
}

// isDown reports whether a connection was reset, or has ended in both directions.
func isDown(c *net.TCPConn) (down bool) {
	err := proc.Use(c, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
		down = err == nil && info.State == unix.BPF_TCP_CLOSE
		return err
	})
	return down || err != nil
}

func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

const maxDatagram = 1 << 16

// flow is who sends, and to which address of the host.
type flow struct {
	peer  netip.AddrPort
	local string // the address, as a control message
}

// sender is the socket by which the job knows a flow. It is closed after it was idle.
type sender struct {
	*net.UDPConn
	last atomic.Int64 // when something has passed
}

func (r *Relay) receive(host *net.UDPConn, port uint16) {
	senders := make(map[flow]*sender)
	data, local := make([]byte, maxDatagram), make([]byte, 128)
	for {
		n, nLocal, _, peer, err := host.ReadMsgUDPAddrPort(data, local)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			time.Sleep(retry)
			continue
		}
		f := flow{peer, string(local[:nLocal])}
		if s := senders[f]; s != nil {
			r.use(s)
			if _, err := s.Write(data[:n]); err == nil {
				continue
			}
			_ = s.Close() // it was idle, or the job had not listened when the last datagram came
			delete(senders, f)
		}
		s := r.admit(port, data[:n])
		if s == nil {
			continue
		}
		if len(senders) >= r.maxSenders {
			oldest := slices.MinFunc(slices.Collect(maps.Keys(senders)), func(a, b flow) int {
				return cmp.Compare(senders[a].last.Load(), senders[b].last.Load())
			})
			_ = senders[oldest].Close()
			delete(senders, oldest)
		}
		senders[f] = s
		r.tasks.Go(func() { r.answer(host, f, s) })
	}
	for _, s := range senders {
		_ = s.Close()
	}
}

func (r *Relay) use(s *sender) {
	now := time.Now()
	s.last.Store(now.UnixNano())
	_ = s.SetReadDeadline(now.Add(r.senderIdle))
}

// admit passes the first datagram of a flow, if the job takes it.
func (r *Relay) admit(port uint16, data []byte) *sender {
	for _, address := range netns.Loopback(port, *r.others.Load()...) {
		conn, err := r.inside.Load().Dial(r.closed, unix.SOCK_DGRAM, address)
		if err != nil {
			continue
		}
		s := &sender{UDPConn: conn.(*net.UDPConn)}
		r.use(s)
		_, err = s.Write(data)
		// On a loopback interface a refusal is known at once, or nearly always; else the next datagram finds it.
		if err == nil && proc.Use(s, peek) != unix.ECONNREFUSED {
			return s
		}
		_ = s.Close()
	}
	return nil
}

func peek(fd int) error {
	_, _, err := unix.Recvfrom(fd, nil, unix.MSG_PEEK)
	return err
}

// answer passes what the job sends.
func (r *Relay) answer(host *net.UDPConn, to flow, s *sender) {
	defer s.Close()
	data := make([]byte, maxDatagram)
	for n, err := s.Read(data); err == nil; n, err = s.Read(data) {
		r.use(s)
		_, _, _ = host.WriteMsgUDPAddrPort(data[:n], []byte(to.local), to.peer) // which may be lost, as any datagram
	}
}

// wantLocalAddress lets a socket tell to which address, and by which interface, a datagram came. Answers leave there.
func wantLocalAddress(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) { // one of them fails, depending on the family
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
}
