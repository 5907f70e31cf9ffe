package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// States of a TCP socket in /proc/net/tcp.
const (
	tcpTimeWait = 0x06
	tcpListen   = 0x0A
)

// listeningPorts lists the TCP ports on which processes listen.
func listeningPorts(t *testing.T, pids []int) []uint64 {
	t.Helper()
	inodes := make(map[string]bool)
	for _, pid := range pids {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil {
				inodes[target] = true
			}
		}
	}
	var ports []uint64
	eachSocket(t, func(port, state, inode uint64) {
		if state == tcpListen && inodes[fmt.Sprintf("socket:[%d]", inode)] {
			ports = append(ports, port)
		}
	})
	return ports
}

// inTimeWait reports whether a connection to one of the ports is in TIME_WAIT.
func inTimeWait(t *testing.T, ports []uint64) bool {
	t.Helper()
	found := false
	eachSocket(t, func(port, state, _ uint64) {
		found = found || state == tcpTimeWait && slices.Contains(ports, port)
	})
	return found
}

// eachSocket visits the TCP sockets of this host.
func eachSocket(t *testing.T, visit func(port, state, inode uint64)) {
	t.Helper()
	for _, name := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile("/proc/net/" + name)
		if os.IsNotExist(err) {
			continue // there is no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
			fields := strings.Fields(line)
			if len(fields) < 10 || fields[0] == "sl" {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			port, portErr := strconv.ParseUint(hex, 16, 16)
			state, stateErr := strconv.ParseUint(fields[3], 16, 8)
			inode, inodeErr := strconv.ParseUint(fields[9], 10, 64)
			if err := errors.Join(portErr, stateErr, inodeErr); err != nil {
				t.Fatalf("/proc/net/%s: %v: %s", name, err, line)
			}
			visit(port, state, inode)
		}
	}
}

// gpusOf lists the GPUs that processes use, as nvidia-smi tells it: by their position among
// this machine's GPUs. It is empty if nvidia-smi does not know.
func gpusOf(t *testing.T, host *testenv.Host, pids []int) []int {
	t.Helper()
	if !testenv.RealDriver() {
		return nil
	}
	out, err := exec.Command("nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader").Output()
	if err != nil {
		t.Logf("nvidia-smi: %v", err)
		return nil
	}
	uuids := host.UUIDs()
	var gpus []int
	for line := range strings.Lines(string(out)) {
		pid, uuid, _ := strings.Cut(strings.TrimSpace(line), ", ")
		number, err := strconv.Atoi(pid)
		if at := slices.Index(uuids, uuid); err == nil && at >= 0 && slices.Contains(pids, number) {
			gpus = append(gpus, at)
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}

// swapped are the GPUs that take the place of others under [swap].
func swapped(gpus []int) []int {
	var others []int
	for _, gpu := range gpus {
		switch gpu {
		case 0:
			gpu = 1
		case 1:
			gpu = 0
		}
		others = append(others, gpu)
	}
	slices.Sort(others)
	return others
}
