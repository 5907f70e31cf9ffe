package prepare

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
)

// TCP says what becomes of the TCP connections between a job and other programs.
type TCP string

// What can become of connections.
const (
	TCPRefuse TCP = ""      // a job that has any is not moved
	TCPClose  TCP = "close" // they are closed, and with them those inside of the job: criu knows no difference
	TCPKeep   TCP = "keep"  // they go on; the user moves the address
)

// outside counts the connections with other programs, and returns the first.
func (j *Job) outside() (n int, first Connection) {
	for _, c := range j.Connections {
		if !c.Inside {
			if n++; n == 1 {
				first = c
			}
		}
	}
	return n, first
}

// connectionFindings judge the connections of a job at the source.
func connectionFindings(j *Job, tcp TCP) preflight.Findings {
	n, first := j.outside()
	if n == 0 {
		if len(j.Connections) == 0 {
			return nil
		}
		message := fmt.Sprintf("the job has %d ends of TCP connections, all of them internal", len(j.Connections))
		return preflight.Findings{preflight.Fine(preflight.FindingTCP, message)}
	}
	f := preflight.Finding{
		Name: preflight.FindingTCP, Severity: preflight.SeverityError, PID: first.PID, Process: j.nameOf(first.PID),
		Message: fmt.Sprintf("has a TCP connection from %v to %v, outside the job", first.Local, first.Remote),
		Remedy:  "--tcp close closes such connections, --tcp keep keeps them if you move the address " + first.Local.Addr().String() + " with the job",
	}
	if n > 1 {
		f.Message += fmt.Sprintf(" (and %d more)", n-1)
	}
	switch tcp {
	case TCPClose:
		f.Severity, f.Remedy = preflight.SeverityWarning, "it will be closed: the job must reconnect"
		if inside := len(j.Connections) - n; inside > 0 {
			f.Remedy += fmt.Sprintf(", and so will the %d ends of connections inside the job", inside)
		}
	case TCPKeep:
		f.Severity, f.Remedy = preflight.SeverityWarning, fmt.Sprintf("it will be kept: move the address %v to the destination before the job resumes", first.Local.Addr())
	}
	return preflight.Findings{f}
}

// portFindings look at the destination for addresses and ports that the job's sockets need.
func portFindings(j *Job, tcp TCP) (preflight.Findings, error) {
	if j.Own.Network {
		return nil, nil
	}
	own, err := proc.OwnAddresses()
	if err != nil {
		return nil, err
	}
	here, err := proc.TCPSockets(os.Getpid())
	if err != nil {
		return nil, err
	}
	var listening []netip.AddrPort
	for _, s := range here {
		if s.Listening() {
			listening = append(listening, s.Local)
		}
	}
	return socketFindings(j, tcp, own, listening), nil
}

func socketFindings(j *Job, tcp TCP, own []netip.Addr, listening []netip.AddrPort) preflight.Findings {
	var findings preflight.Findings
	isHere := func(a netip.Addr) bool { return a.IsUnspecified() || a.IsLoopback() || slices.Contains(own, a) }
	for _, s := range j.Listening {
		f := preflight.Finding{Name: preflight.FindingTCPAddress, Severity: preflight.SeverityError, PID: s.PID, Process: j.nameOf(s.PID)}
		for _, taken := range listening {
			a, b := s.Local.Addr(), taken.Addr()
			if s.Local.Port() == taken.Port() && (a == b || a.IsUnspecified() || b.IsUnspecified()) {
				f.Message, f.Remedy = fmt.Sprintf("listens on %v, but a program of this host listens on %v", s.Local, taken), "end that program"
			}
		}
		if !isHere(s.Local.Addr()) {
			f.Message, f.Remedy = fmt.Sprintf("listens on %v, but this host has no such address", s.Local), "let the job listen on all addresses, or give this host that address"
		}
		if f.Message != "" {
			findings = append(findings, f)
		}
	}
	seen := make(map[netip.Addr]bool)
	for _, c := range j.Connections {
		address := c.Local.Addr()
		if tcp != TCPKeep || seen[address] || isHere(address) {
			continue
		}
		seen[address] = true
		findings = append(findings, preflight.Finding{
			Name: preflight.FindingTCPAddress, Severity: preflight.SeverityWarning, PID: c.PID, Process: j.nameOf(c.PID),
			Message: fmt.Sprintf("is connected from %v, an address that this host does not have", address), Remedy: "move it here once the job is stopped at its source",
		})
	}
	return findings
}
