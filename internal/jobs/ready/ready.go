// Package ready looks whether a job is ready, by a condition that its user has named. It reads what the job answers and
// writes with a bound, and leaves no connection in the job.
package ready

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/netns"
)

// Condition is when a job is ready. The zero Condition is none.
type Condition struct {
	text     string // as the user gave it
	file     string
	log      string
	url      *url.URL         // nil if none is asked
	connects []netip.AddrPort // one of them takes a connection
}

// Connects reports whether a look connects to the job.
func (c Condition) Connects() bool { return len(c.connects) > 0 }

// Help says how a condition is written.
const Help = "http://HOST:PORT/PATH or https://… (answered with a status 2xx, as seen from the job), tcp:PORT " +
	"(a connection is accepted), file:PATH (exists, as the job sees it) or log:TEXT (in a line of DIR/output.log " +
	"since the job runs)"

func (c Condition) String() string { return c.text }

// Parse reads a condition.
func Parse(text string) (Condition, error) {
	c := Condition{text: text}
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "http", "https":
		return c, c.parseURL(map[string]string{"http": "80", "https": "443"}[kind])
	case "tcp":
		return c, c.to("localhost", rest)
	case "file":
		if c.file = rest; !filepath.IsAbs(rest) {
			return c, fmt.Errorf("%q: must be an absolute path", text)
		}
		return c, nil
	case "log":
		if c.log = rest; rest == "" || len(rest) > maxText || strings.ContainsFunc(rest, unicode.IsControl) {
			return c, fmt.Errorf("%q: must be a part of one line, of at most %d bytes", text, maxText)
		}
		return c, nil
	}
	return c, fmt.Errorf("%q: want http://…, https://…, tcp:PORT, file:PATH or log:TEXT", text)
}

func (c *Condition) parseURL(port string) (err error) {
	if c.url, err = url.Parse(c.text); err != nil {
		return err
	}
	return c.to(c.url.Hostname(), cmp.Or(c.url.Port(), port))
}

// to says where to connect. It takes no names of hosts but localhost: those that a job knows are not to be found out
// from outside.
func (c *Condition) to(host, text string) error {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%q: a port is a number between 1 and 65535", c.text)
	}
	if host == "localhost" {
		c.connects = netns.Loopback(uint16(port))
		return nil
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return fmt.Errorf("%q: HOST must be localhost or an IP address", c.text)
	}
	c.connects = []netip.AddrPort{netip.AddrPortFrom(address.Unmap(), uint16(port))}
	return nil
}

const maxText = 1024 // bytes

// Probe looks again and again.
type Probe struct {
	Condition
	PID    int    // of a process with the job's namespaces
	Output string // the file with its output
	From   int64  // where in that the job's present run begins

	output *os.File
	at     int64  // up to where that was read
	rest   []byte // the end of what was read, in which a part of the text may be
}

// Met returns nil if the condition is met, and else what is lacking.
func (p *Probe) Met(ctx context.Context) error {
	switch {
	case p.file != "":
		return p.findFile()
	case p.log != "":
		return p.findText(ctx)
	}
	return p.connect(ctx)
}

// Close ends the probe.
func (p *Probe) Close() {
	if p.output != nil {
		p.output.Close()
	}
}

// findFile looks for a file in the job's mount namespace. Symbolic links lead where they lead the job.
func (p *Probe) findFile() error {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", p.PID), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	fd, err := unix.Openat2(root, p.file, how)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

const (
	chunk   = 64 << 10
	maxRead = 16 << 20 // of the output at one look
)

// findText reads what is new in the job's output. A file that has become shorter was emptied; one that was renamed is
// where the job still writes.
func (p *Probe) findText(ctx context.Context) (err error) {
	if p.output == nil {
		if p.output, err = os.Open(p.Output); err != nil {
			return err
		}
		p.at = p.From
	}
	info, err := p.output.Stat()
	if err != nil {
		return err
	}
	if info.Size() < p.at {
		p.at, p.rest = 0, nil
	}
	buffer := make([]byte, chunk)
	for end := p.at + maxRead; p.at < end && ctx.Err() == nil; {
		n, err := p.output.ReadAt(buffer, p.at)
		p.at += int64(n)
		p.rest = append(p.rest, buffer[:n]...)
		if bytes.Contains(p.rest, []byte(p.log)) {
			return nil
		}
		p.rest = bytes.Clone(p.rest[max(0, len(p.rest)-len(p.log)+1):])
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			break
		}
	}
	return errors.New("the job's output has no such line yet")
}
