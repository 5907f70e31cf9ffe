package ready

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/proc"
)

const (
	maxAnswer     = 64 << 10         // bytes
	answerTimeout = 10 * time.Second // of a server that has taken the connection
	closeTimeout  = 2 * time.Second  // until it has closed its end
	lookEvery     = 50 * time.Millisecond
)

// connect asks the job, or only connects to it. A connection that no program takes waits with others in the kernel,
// also after we have ended it, and criu refuses a job for which one waits: so there is never more than one of ours.
func (p *Probe) connect(ctx context.Context) error {
	if err := p.refuseQueue(); err != nil {
		return err
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", p.PID))
	if err != nil {
		return err
	}
	defer file.Close()
	namespace, err := netns.Enter(file)
	if err != nil {
		return err
	}
	defer namespace.Close()
	for _, address := range p.connects {
		var conn net.Conn
		if conn, err = namespace.Dial(ctx, unix.SOCK_STREAM, address); err == nil {
			return p.use(ctx, conn.(*net.TCPConn))
		}
	}
	return err
}

// refuseQueue fails if a connection waits already: a look that was cut off may have left it.
func (p *Probe) refuseQueue() error {
	sockets, err := proc.TCPSockets(p.PID)
	for _, s := range sockets {
		leadsTo := func(to netip.AddrPort) bool {
			return s.Local == to || s.Local.Addr().IsUnspecified() && s.Local.Port() == to.Port()
		}
		if s.Listening() && s.Received > 0 && slices.ContainsFunc(p.connects, leadsTo) {
			return errors.New("connections wait until the job takes them")
		}
	}
	return err
}

// use asks over a connection, and ends it.
func (p *Probe) use(ctx context.Context, conn *net.TCPConn) (err error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	defer func() { err = errors.Join(err, p.hangUp(ctx, conn)) }()
	for { // until a program has taken it
		end, err := p.jobsEnd(conn)
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if end == nil || end.Inode != 0 {
			break
		}
		time.Sleep(lookEvery)
	}
	if p.url == nil {
		return nil
	}
	if _ = conn.SetDeadline(time.Now().Add(answerTimeout)); ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var over net.Conn = conn
	if p.url.Scheme == "https" {
		over = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // as a probe of Kubernetes: it is in the job's network
	}
	header := http.Header{"User-Agent": {"cucriu"}}
	request := &http.Request{Method: http.MethodGet, URL: p.url, Close: true, Header: header}
	if err := request.Write(over); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(io.LimitReader(over, maxAnswer)), request)
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the answer has status %d", answer.StatusCode)
	}
	return nil
}

// hangUp ends a connection, and returns once the kernel shows nothing of it that criu would find in the job. A reset
// ends what the server does not, and what it has closed first, as after an answer: else its port were in TIME_WAIT.
func (p *Probe) hangUp(ctx context.Context, conn *net.TCPConn) error {
	if ctx.Err() == nil {
		if p.url == nil { // it waits for us
			_ = conn.CloseWrite()
		}
		_ = conn.SetReadDeadline(time.Now().Add(closeTimeout))
		_, _ = io.CopyN(io.Discard, conn, maxAnswer)
	}
	_ = conn.SetLinger(0)
	_ = conn.Close()
	for begun := time.Now(); ; time.Sleep(lookEvery) {
		end, err := p.jobsEnd(conn)
		if end == nil || err != nil {
			return err
		}
		if time.Since(begun) > closeTimeout {
			return errors.New("the connection is still open")
		}
	}
}

// jobsEnd finds the other end of a connection in the job; nil if there is none any more.
func (p *Probe) jobsEnd(conn *net.TCPConn) (*proc.TCPSocket, error) {
	sockets, err := proc.TCPSockets(p.PID)
	if err != nil {
		return nil, err
	}
	addressOf := func(a net.Addr) netip.AddrPort {
		of := a.(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(of.Addr().Unmap(), of.Port())
	}
	for _, s := range sockets {
		if s.Local == addressOf(conn.RemoteAddr()) && s.Remote == addressOf(conn.LocalAddr()) && s.Connected() {
			return &s, nil
		}
	}
	return nil, nil
}
