package migrate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"cucriu/internal/migrate/wire"
)

// Where no port of the destination can be reached, the data goes through ssh as well: each
// connection is an ssh of its own, whose program there leads to a port that only that host can
// reach. What goes over it is the same TLS as otherwise.

const relayAddress = "127.0.0.1"

// receiveArgs are what cucriu receive is told on its command line. A remote shell reads them.
func (o *Options) receiveArgs() (args []string) {
	if o.ViaSSH {
		return []string{"--bind", relayAddress}
	}
	for _, address := range o.Bind {
		args = append(args, "--bind", address)
	}
	if o.Ports != "" {
		args = append(args, "--ports", o.Ports)
	}
	return args
}

// checkListening refuses invalid addresses and ports.
func (o *Options) checkListening() error {
	for _, address := range o.Bind {
		if _, err := netip.ParseAddr(address); err != nil || strings.ContainsRune(address, '%') {
			return fmt.Errorf("%.60q is not an address of the destination", address)
		}
	}
	return CheckPorts(o.Ports)
}

// CheckPorts refuses what is neither a port nor a range of ports.
func CheckPorts(text string) error {
	_, _, err := wire.ParsePorts(text)
	return err
}

// dataDialer makes the connections for data to where the destination listens.
func (o *Options) dataDialer(at listening, config *tls.Config) func(context.Context) (net.Conn, error) {
	if !o.ViaSSH {
		name := o.Host[strings.LastIndexByte(o.Host, '@')+1:]
		dialer := &wire.Dialer{Addresses: at.Addresses, Hint: name, Config: config}
		return dialer.Dial
	}
	// One after the other: sshd drops some of those that log in at the same time (MaxStartups).
	turn := make(chan struct{}, 1)
	return func(ctx context.Context) (net.Conn, error) {
		if len(at.Addresses) == 0 {
			return nil, errors.New("the destination has sent no address")
		}
		address, err := loopback(at.Addresses[0])
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, sshPatience)
		defer cancel()
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		return o.dialRelayed(ctx, address, config)
	}
}

const (
	sshPatience = time.Minute            // for all tries: sshd keeps an address out for 15 s and more (PerSourcePenalties)
	sshPause    = 250 * time.Millisecond // before the second try, then twice as long each time
	sshFailed   = 255                    // the exit status of an ssh that failed itself, rather than what it was to run
)

// dialRelayed tries again if ssh has failed: sshd drops connections when it has too many, by chance or for a while.
func (o *Options) dialRelayed(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	for pause := sshPause; ; pause *= 2 {
		raw, ended, err := o.relayed(address)
		if err != nil {
			return nil, err
		}
		conn, err := wire.Client(ctx, raw, config)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case status := <-ended: // its input was closed
			if status != sshFailed {
				return nil, err
			}
		}
		err = fmt.Errorf("%s failed (exit %d)", o.RSH[0], sshFailed)
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// relayed is a connection over an ssh of its own, whose exit status comes when it has ended.
func (o *Options) relayed(address string) (conn net.Conn, ended <-chan int, err error) {
	cmd := o.remoteCommand("--relay", address)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, outEnd, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = outEnd
	err = cmd.Start()
	outEnd.Close()
	if err != nil {
		out.Close()
		return nil, nil, fmt.Errorf("start %s: %w", o.RSH[0], err)
	}
	status := make(chan int, 1)
	go func() { // it ends with its input
		_ = cmd.Wait()
		status <- cmd.ProcessState.ExitCode()
	}()
	return wire.PipeConn(out, in), status, nil
}

// loopback refuses an address that others could reach.
func loopback(text string) (string, error) {
	address, err := netip.ParseAddrPort(text)
	if err != nil || !address.Addr().IsLoopback() {
		return "", fmt.Errorf("%.60q is not an address of the host itself, such as 127.0.0.1:7000", text)
	}
	return address.String(), nil
}

// Relay joins in and out to an address of this host itself, at which a destination listens.
func Relay(ctx context.Context, in io.ReadCloser, out io.Writer, address string) error {
	address, err := loopback(address)
	if err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ended := make(chan error, 2)
	go func() {
		_, err := io.Copy(conn, in)
		ended <- err
	}()
	go func() {
		_, err := io.Copy(out, conn)
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
