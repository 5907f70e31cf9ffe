package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/netns"
)

const (
	maxConnections = 4096
	maxSenders     = 1024
	senderIdle     = time.Minute
	grace          = time.Second           // for what is under way when Serve is to end
	retry          = 50 * time.Millisecond // without descriptors or memory; nothing tells when there are some again
)

// Relay has ports of the host.
type Relay struct {
	published []Publish
	listeners []io.Closer // *net.TCPListener or *net.UDPConn, in the same order

	closed      context.Context // ends every connection
	close       context.CancelFunc
	inside      atomic.Pointer[netns.Namespace]
	others      atomic.Pointer[[]netip.Addr] // of the job, beside loopback addresses
	tasks       sync.WaitGroup
	connections chan struct{} // has an element for each
	maxSenders  int           // of a port
	senderIdle  time.Duration
}

// Listen opens the ports, all or none. Those who connect wait for Serve.
func Listen(published []Publish) (*Relay, error) {
	var limit unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) // it does not fail
	quarter := int(min(limit.Cur, 1<<20) / 4)      // of the descriptors for TCP and for UDP each: others need some, too
	r := &Relay{
		published: slices.Clone(published), senderIdle: senderIdle,
		connections: make(chan struct{}, min(maxConnections, quarter/6)), // 2 sockets, and 2 pipes that Go splices with
		maxSenders:  min(maxSenders, quarter/max(len(published), 1)),
	}
	r.closed, r.close = context.WithCancel(context.Background())
	for i := range r.published {
		p := &r.published[i]
		listener, err := p.listen()
		if errors.Is(err, unix.EADDRINUSE) {
			err = fault.Because(err, fmt.Sprintf("port %d of this host is in use, or published twice", p.New),
				"publish another port; 0 stands for any free one")
		} else if errors.Is(err, unix.EADDRNOTAVAIL) {
			err = fault.Because(err, fmt.Sprintf("this host does not have the address %v", p.Address),
				"publish at one that it has, or give it the address (ip address add)")
		}
		if err != nil {
			r.Close()
			return nil, fmt.Errorf("publish %s: %w", p, err)
		}
		r.listeners = append(r.listeners, listener)
	}
	return r, nil
}

// listen opens a port, and notes which one it is.
func (p *Publish) listen() (listener io.Closer, err error) {
	family := "" // both, as far as the host has them
	if p.Address.Is4() {
		family = "4" // even 0.0.0.0
	} else if p.Address.Is6() {
		family = "6"
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false) // Go splices plain TCP only
	if p.UDP {
		config.Control = wantLocalAddress
		socket, err := config.ListenPacket(context.Background(), "udp"+family, p.host())
		if err == nil {
			p.New = netip.MustParseAddrPort(socket.LocalAddr().String()).Port()
		}
		return socket, err
	}
	socket, err := config.Listen(context.Background(), "tcp"+family, p.host())
	if err == nil {
		p.New = netip.MustParseAddrPort(socket.Addr().String()).Port()
	}
	return socket, err
}

// Published returns what is published, with the ports that 0 has become.
func (r *Relay) Published() []Publish { return slices.Clone(r.published) }

// Serve relays to a network namespace, an open /proc/PID/ns/net, and keeps that until it returns. It is called once. It
// returns after Close, or when ctx is done: then the ports are closed at once, and peers have a second to take what the
// job has sent last. What does not listen at a loopback address is looked for at the others.
func (r *Relay) Serve(ctx context.Context, namespace *os.File, others []netip.Addr) (err error) {
	defer r.Close()
	if err := r.Move(namespace, others); err != nil {
		return err
	}
	defer func() { r.inside.Load().Close() }()
	defer context.AfterFunc(ctx, func() { r.end(grace) })()
	for i, p := range r.published {
		switch listener := r.listeners[i].(type) {
		case *net.TCPListener:
			r.tasks.Go(func() { r.accept(listener, p.Old) })
		case *net.UDPConn:
			r.tasks.Go(func() { r.receive(listener, p.Old) })
		}
	}
	r.tasks.Wait()
	return nil
}

// Move has a relay that serves connect to another namespace from now on: that of the job after a restart.
func (r *Relay) Move(namespace *os.File, others []netip.Addr) error {
	inside, err := netns.Enter(namespace)
	if err != nil {
		return err
	}
	r.others.Store(&others)
	if before := r.inside.Swap(inside); before != nil {
		before.Close()
	}
	return nil
}

// Close closes the ports and resets all connections.
func (r *Relay) Close() { r.end(0) }

func (r *Relay) end(after time.Duration) {
	for _, listener := range r.listeners {
		_ = listener.Close()
	}
	time.AfterFunc(after, r.close)
}
