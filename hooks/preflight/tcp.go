package preflight

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cucriu/criuutil"
)

// connectedStates are the states of a TCP socket in which criu needs --tcp-established, as
// /proc/PID/net/tcp has them: established, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK,
// CLOSING.
var connectedStates = []string{"01", "04", "05", "08", "09", "0B"}

// connected finds a process with a TCP connection, 0 if there is none.
func (t tree) connected() int {
	byNamespace := make(map[string]map[uint64]bool) // inodes of connected sockets
	namespaces := make(map[int]string)
	for inode, f := range t.inodes("socket") {
		dir := filepath.Join("/proc", strconv.Itoa(f.pid))
		if _, known := namespaces[f.pid]; !known {
			namespace, err := os.Readlink(filepath.Join(dir, "ns", "net"))
			if err != nil {
				continue
			}
			namespaces[f.pid] = namespace
		}
		namespace := namespaces[f.pid]
		if byNamespace[namespace] == nil {
			byNamespace[namespace] = connectedSockets(dir)
		}
		if byNamespace[namespace][inode] {
			return f.pid
		}
	}
	return 0
}

// connectedSockets returns the inodes of the TCP connections in the network namespace of a
// process, whose folder in /proc is dir.
func connectedSockets(dir string) map[uint64]bool {
	inodes := make(map[uint64]bool)
	for _, name := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile(filepath.Join(dir, "net", name))
		if err != nil {
			continue // without IPv6 there is no tcp6
		}
		for line := range strings.Lines(string(data)) {
			// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
			fields := strings.Fields(line)
			if len(fields) < 10 || !slices.Contains(connectedStates, fields[3]) {
				continue
			}
			if inode, err := strconv.ParseUint(fields[9], 10, 64); err == nil && inode > 0 {
				inodes[inode] = true
			}
		}
	}
	return inodes
}

const riskOfSkip = "a packet that comes in while the job is dumped may end its connection: install iptables, or a criu that was built with nftables, to hold such packets back"

// networkLock finds a way to hold back the packets of TCP connections that works here: criu's
// default, iptables; else nftables, which is in criu if it was built with it; else none.
func networkLock(ctx context.Context, criu string, held bool) (method string, need Need) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	missing := "the job is held until it is decided where it goes on"
	if !held {
		missing = workingIptables(ctx)
	}
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
