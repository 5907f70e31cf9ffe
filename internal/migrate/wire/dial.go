package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"cucriu/internal/kit/failpoint"
)

const (
	// dialTimeout is for one address, with the proof of who is there.
	dialTimeout = 10 * time.Second
	// dialHeadStart is how long an address is tried alone before the next one is tried, too.
	dialHeadStart = 300 * time.Millisecond
	// maxAddresses is how many addresses of the other side are tried.
	maxAddresses = 64
)

// Dialer makes connections to the first address at which the pinned peer answers.
type Dialer struct {
	// Addresses are what [Listener.Addresses] said there.
	Addresses []string
	// Hint is a name of that host, such as the one that ssh took; may be empty. Those of the
	// addresses that it resolves to are tried first; and if none does, its own are tried last.
	Hint string
	// Config comes from [Identity.ClientConfig].
	Config *tls.Config

	mutex  sync.Mutex
	worked string // the address that answered last
}

// Dial connects. Its connection is the pinned peer's.
func (d *Dialer) Dial(ctx context.Context) (net.Conn, error) {
	addresses := d.order(ctx)
	if len(addresses) == 0 {
		return nil, errors.New("dial: the other host has sent no address")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conns, errs := make(chan net.Conn), make(chan error, len(addresses))
	for i, address := range addresses {
		go func() {
			pause(ctx, time.Duration(i)*dialHeadStart)
			conn, err := d.dialOne(ctx, address)
			if err != nil {
				errs <- fmt.Errorf("%.80q: %w", address, err)
				return
			}
			select {
			case conns <- conn:
			case <-ctx.Done():
				conn.Close() // another was quicker
			}
		}()
	}
	var failed []error
	for len(failed) < len(addresses) {
		select {
		case conn := <-conns:
			d.mutex.Lock()
			defer d.mutex.Unlock()
			d.worked = conn.RemoteAddr().String()
			return conn, nil
		case err := <-errs:
			failed = append(failed, err)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, errors.Join(failed...)
}

func (d *Dialer) dialOne(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, failpoint.Patience(dialTimeout))
	defer cancel()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return Client(ctx, raw, d.Config)
}

// order returns the addresses in the order in which they are tried.
func (d *Dialer) order(ctx context.Context) []string {
	all := d.Addresses[:min(len(d.Addresses), maxAddresses)]
	var hinted []string
	if d.Hint != "" {
		ctx, cancel := context.WithTimeout(ctx, failpoint.Patience(dialTimeout))
		defer cancel()
		hinted, _ = net.DefaultResolver.LookupHost(ctx, d.Hint) // an alias of the ssh configuration is unknown here
	}
	var first, rest []string
	var extra []string
	for _, a := range all {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			continue
		}
		if slices.Contains(hinted, host) {
			first = append(first, a)
		} else {
			rest = append(rest, a)
		}
		for _, h := range hinted {
			extra = append(extra, net.JoinHostPort(h, port))
		}
	}
	order := append(first, rest...)
	for _, a := range extra {
		if len(first) == 0 && !slices.Contains(order, a) {
			order = append(order, a)
		}
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if i := slices.Index(order, d.worked); i > 0 {
		order = slices.Insert(slices.Delete(order, i, i+1), 0, d.worked)
	}
	return order
}
