package preflight

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"cucriu/criuutil"
	"cucriu/criuutil/proc"
)

// connected finds a process with a TCP connection, 0 if there is none.
func (t tree) connected() int {
	byNamespace := make(map[string]map[uint64]bool) // inodes of connected sockets
	namespaces := make(map[int]string)
	for inode, f := range t.inodes("socket") {
		if _, known := namespaces[f.pid]; !known {
			namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", f.pid))
			if err != nil {
				continue
			}
			namespaces[f.pid] = namespace
		}
		namespace := namespaces[f.pid]
		if byNamespace[namespace] == nil {
			byNamespace[namespace] = connectedSockets(f.pid)
		}
		if byNamespace[namespace][inode] {
			return f.pid
		}
	}
	return 0
}

// connectedSockets returns the inodes of the TCP connections in the network namespace of a
// process.
func connectedSockets(pid int) map[uint64]bool {
	inodes := make(map[uint64]bool)
	sockets, _ := proc.TCPSockets(pid) // it may have ended
	for _, s := range sockets {
		if s.Connected() && s.Inode > 0 {
			inodes[s.Inode] = true
		}
	}
	return inodes
}

const riskOfSkip = "a packet that comes in while the job is dumped may end its connection: install iptables, or a criu that was built with nftables, to hold such packets back"

// networkLock finds a way to hold back the packets of TCP connections that works here: criu's
// default, iptables; else nftables, which is in criu if it was built with it; else none.
func networkLock(ctx context.Context, criu string) (method string, need Need) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	missing := workingIptables(ctx)
	if missing == "" {
		return "", Need{}
	}
	if criuutil.HasFeature(ctx, criu, "network_lock_nftables") {
		return "nftables", Need{Option: "--network-lock nftables", Why: missing}
	}
	return "skip", Need{Option: "--network-lock skip", Why: missing + ", and criu has no nftables", Risk: riskOfSkip}
}

// workingIptables says what is wrong with iptables here; empty if nothing.
func workingIptables(ctx context.Context) string {
	for _, name := range []string{"iptables", "iptables-restore"} { // the second for a network namespace of the tree's own
		if _, err := exec.LookPath(name); err != nil {
			return name + " is not installed here"
		}
	}
	if out, err := exec.CommandContext(ctx, "iptables", "-w", "-t", "filter", "-S", "INPUT").CombinedOutput(); err != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Sprintf("iptables does not work here (%s)", strings.TrimSpace(text+" "+err.Error()))
	}
	return ""
}

// addressFindings refuse TCP sockets that are bound to addresses which this host does not have,
// or has no more. criu could not bind them again.
func (t tree) addressFindings() (Findings, error) {
	var findings Findings
	own, err := OwnAddresses()
	if err != nil {
		return nil, err
	}
	sockets, err := proc.TCPSockets(os.Getpid())
	if err != nil {
		return nil, err
	}
	ours := t.inodes("socket")
	for _, s := range sockets {
		a := s.Local.Addr()
		if f, is := ours[s.Inode]; is && !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(own, a) {
			findings = append(findings, aboutProcess(f.pid, Finding{
				Name: FindingTCPAddress, Severity: SeverityError, Message: fmt.Sprintf("has a TCP socket that is bound to %v, and this host has no such address", s.Local),
				Remedy: "give this host the address again (ip addr add), or let the job close the socket",
			}))
		}
	}
	return findings, nil
}

// OwnAddresses lists the IP addresses of this host.
func OwnAddresses() ([]netip.Addr, error) {
	known, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	var own []netip.Addr
	for _, a := range known {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr().Unmap())
		}
	}
	return own, nil
}
