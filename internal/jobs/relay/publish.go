package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"cucriu/internal/kit/quote"
)

// Publish is a port of the host that leads to a port of the job.
type Publish struct {
	Address netip.Addr `json:"address"` // of the host; the zero Addr for all of them
	New     uint16     `json:"new"`     // on the host; 0 for any free one
	Old     uint16     `json:"old"`     // in the job
	UDP     bool       `json:"udp"`     // rather than TCP
}

var form = regexp.MustCompile(`^(?:(.+):)?([0-9]+):([0-9]+)(?:/(tcp|udp))?$`)

// Parse reads [ADDRESS:]NEW:OLD[/tcp|/udp].
func Parse(text string) (Publish, error) {
	invalid := func(why string) (Publish, error) {
		return Publish{}, fmt.Errorf("invalid port to publish %s: %s", quote.Name(text), why)
	}
	parts := form.FindStringSubmatch(text)
	if parts == nil {
		return invalid("want [ADDRESS:]NEW:OLD[/tcp|/udp]")
	}
	onHost, hostErr := strconv.ParseUint(parts[2], 10, 16)
	inJob, jobErr := strconv.ParseUint(parts[3], 10, 16)
	if errors.Join(hostErr, jobErr) != nil || inJob == 0 {
		return invalid("NEW and OLD must be port numbers up to 65535; only NEW may be 0, for any free port")
	}
	p := Publish{New: uint16(onHost), Old: uint16(inJob), UDP: parts[4] == "udp"}
	if parts[1] != "" {
		host, err := netip.ParseAddrPort(parts[1] + ":0") // only IPv6 may, and must, be in brackets
		if err != nil {
			return invalid("ADDRESS must be an IP address, in brackets if it is IPv6")
		}
		p.Address = host.Addr().Unmap()
	}
	return p, nil
}

// String returns what Parse reads.
func (p Publish) String() string {
	text := fmt.Sprintf("%s:%d", strings.TrimPrefix(p.host(), ":"), p.Old)
	if p.UDP {
		text += "/udp"
	}
	return text
}

// host returns the address and port of the host.
func (p Publish) host() string {
	address := ""
	if p.Address.IsValid() {
		address = p.Address.String()
	}
	return net.JoinHostPort(address, strconv.Itoa(int(p.New)))
}
