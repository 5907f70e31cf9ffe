package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/fault"
	"cucriu/internal/proc"
)

// outside finds what connects the tree with processes outside of it. criu refuses some of it; the
// rest is restored otherwise than it was.
func (s *snapshot) outside(w *Wanted) error {
	sockets, err := s.outsideSockets()
	if err != nil {
		return err
	}
	pipes := s.oneSidedPipes()
	links := make(map[string]bool) // of the other ends
	for _, socket := range sockets {
		if !socket.datagrams() {
			links[socket.peerLink()] = true
		}
	}
	for _, p := range pipes {
		links[p.link] = true
	}
	others, err := s.holdersOutside(links)
	if err != nil {
		return err
	}
	for _, socket := range sockets {
		if !socket.datagrams() {
			w.Findings = append(w.Findings, socket.finding(others[socket.peerLink()]))
			continue
		}
		if !w.Options.ExtUnixSk {
			w.Options.ExtUnixSk = true
			w.add("--ext-unix-sk", fmt.Sprintf("process %d sends to %s, a UNIX socket outside the tree", socket.of.pid, socket.peerName), "")
		}
		if socket.reachableHere() && !slices.Contains(w.Options.Sockets, socket.peerName) {
			w.Options.Sockets = append(w.Options.Sockets, socket.peerName)
		}
	}
	for _, p := range pipes {
		at := slices.IndexFunc(others[p.link], func(other *file) bool {
			reads, writes := other.info().Access()
			return p.writes && reads || !p.writes && writes
		})
		if at < 0 {
			continue
		}
		w.Findings = append(w.Findings, p.finding(others[p.link][at]))
		if p.writes {
			w.Options.Pipes = append(w.Options.Pipes, image.Pipe{Name: p.link, Stderr: p.stderr})
		}
	}
	addresses, err := s.addressFindings()
	w.Findings = slices.Concat(w.Findings, addresses, s.queueFindings())
	return err
}

// holdersOutside finds, for links of sockets and pipes, processes outside of the tree that have them open.
func (s *snapshot) holdersOutside(links map[string]bool) (map[string][]*file, error) {
	if len(links) == 0 {
		return nil, nil
	}
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	found := make(map[string][]*file)
	for _, pid := range all {
		l := &look{pid: pid}
		if slices.Contains(s.pids, pid) || l.readDescriptors(links) != nil {
			continue
		}
		for _, f := range l.open {
			found[f.link] = append(found[f.link], f)
		}
	}
	return found, nil
}

// oneSidedPipe is a pipe of which the tree has only ends of one kind.
type oneSidedPipe struct {
	*file
	writes bool // the tree writes into it; otherwise it only reads
	stderr bool // it is the standard error of a process, and no other descriptor
}

// oneSidedPipes finds them, in the order of their inodes.
func (s *snapshot) oneSidedPipes() []oneSidedPipe {
	type ends struct{ reads, writes, stderr bool }
	byInode := make(map[uint64]ends)
	for f := range s.open {
		if inode, is := f.inode("pipe"); is {
			reads, writes := f.info().Access()
			e, known := byInode[inode]
			byInode[inode] = ends{e.reads || reads, e.writes || writes, (!known || e.stderr) && f.number == "2"}
		}
	}
	var pipes []oneSidedPipe
	files := s.inodes("pipe")
	for _, inode := range slices.Sorted(maps.Keys(files)) {
		if e := byInode[inode]; e.reads != e.writes {
			pipes = append(pipes, oneSidedPipe{files[inode], e.writes, e.stderr})
		}
	}
	return pipes
}

func (p oneSidedPipe) finding(other *file) preflight.Finding {
	if p.writes {
		return p.of.about(preflight.New(preflight.FindingOutsidePipe,
			fmt.Sprintf("writes into a pipe (descriptor %s) to %s, which is outside the tree; cucriu restore replaces that pipe by the standard output of cucriu restore", p.number, processName(other.of.pid)),
			fmt.Sprintf("with plain criu restore, give --inherit-fd 'fd[1]:%s', or the job dies at its next write", p.link)))
	}
	return p.of.about(preflight.New(preflight.FindingOutsidePipe,
		fmt.Sprintf("reads from a pipe (descriptor %s) from %s, which is outside the tree: after a restore it reads end of file", p.number, processName(other.of.pid)),
		"if the job needs more of that input, let it read from a file"))
}

// unixSocket is a UNIX socket as the kernel lists it (unix_diag).
type unixSocket struct {
	sort    byte // SOCK_STREAM and the like
	address string
	peer    uint64 // the inode of the other end; 0 if there is none
	waits   bool   // it is connected, and not accepted yet
	unread  uint32 // bytes that it has sent and that are not read
	dead    int    // clients in its queue that have closed their ends
}

// unaccepted says what criu cannot dump of a connection that is not accepted yet; "" if it can.
func (s unixSocket) unaccepted() string {
	switch {
	case s.dead > 0:
		return fmt.Sprintf("listens on %s, and a client that it has not accepted yet has ended", s.address)
	case s.waits && s.unread > 0:
		return "has sent data on a connection that the server has not accepted yet"
	}
	return ""
}

// outsideSocket is a socket of the tree that is connected to one outside of it.
type outsideSocket struct {
	*file
	unixSocket
	peerName string // empty if it has none
}

func (s outsideSocket) peerLink() string { return fmt.Sprintf("socket:[%d]", s.peer) }

// datagrams reports whether criu can dump the connection: with --ext-unix-sk, and the
// restore connects to the name again.
func (s outsideSocket) datagrams() bool { return s.sort == unix.SOCK_DGRAM && s.peerName != "" }

// reachableHere reports whether the name of the peer means the same socket to us: the
// process is in our namespaces.
func (s outsideSocket) reachableHere() bool {
	if filepath.IsAbs(s.peerName) {
		return s.of.inOurs("mnt")
	}
	return strings.HasPrefix(s.peerName, "@") && s.of.inOurs("net")
}

// finding refuses a connection that criu cannot dump. others have its other end.
func (s outsideSocket) finding(others []*file) preflight.Finding {
	to := "a socket outside the tree"
	if len(others) > 0 {
		to = processName(others[0].of.pid) + " outside the tree"
	}
	if name := s.peerName + s.address; name != "" {
		to += " (" + name + ")"
	}
	return s.of.about(preflight.New(preflight.FindingUNIXSocket, fmt.Sprintf("is connected by a UNIX socket (descriptor %s) to %s, and criu cannot dump one half of a connection", s.number, to), ""))
}

// unixSockets lists the UNIX sockets of the networks of the tree, and which sockets are the tree's.
func (s *snapshot) unixSockets() (ours map[uint64]*file, known map[uint64]unixSocket, err error) {
	ours, known = s.inodes("socket"), make(map[uint64]unixSocket)
	err = eachNetwork(ours, func(l *look) error { return listUnixSockets(fmt.Sprintf("/proc/%d/ns/net", l.pid), known) })
	return ours, known, err
}

// queueFindings refuse connections in the queue of a server that criu cannot dump, if it does not take them soon.
func (s *snapshot) queueFindings() (findings preflight.Findings) {
	lasts(func() bool {
		findings = nil
		ours, known, _ := s.unixSockets()
		for _, inode := range slices.Sorted(maps.Keys(ours)) {
			if why := known[inode].unaccepted(); why != "" {
				f := ours[inode]
				findings = append(findings, f.of.about(preflight.New(preflight.FindingUNIXSocket,
					proc.Printable(fmt.Sprintf("%s (descriptor %s), which criu cannot dump", why, f.number)), "try again when the server has accepted it")))
			}
		}
		return len(findings) > 0
	})
	return findings
}

// outsideSockets finds the UNIX sockets that are connected to sockets outside of the tree.
func (s *snapshot) outsideSockets() ([]outsideSocket, error) {
	ours, known, err := s.unixSockets()
	var outside []outsideSocket
	for _, inode := range slices.Sorted(maps.Keys(ours)) {
		socket := known[inode]
		if _, inside := ours[socket.peer]; socket.peer != 0 && !inside {
			outside = append(outside, outsideSocket{ours[inode], socket, known[socket.peer].address})
		}
	}
	return outside, err
}

// eachNetwork does something once for each network namespace that the sockets are in.
func eachNetwork(sockets map[uint64]*file, do func(*look) error) error {
	done := make(map[string]bool)
	for _, f := range sockets {
		namespace := f.of.spaces["net"]
		if done[namespace] {
			continue
		}
		done[namespace] = true
		if err := do(f.of); err != nil {
			return err
		}
	}
	return nil
}

// listUnixSockets adds the UNIX sockets of a network namespace by their inodes.
func listUnixSockets(namespace string, to map[uint64]unixSocket) error {
	ns, err := os.Open(namespace)
	if err != nil {
		return nil // its process has ended
	}
	defer ns.Close()
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: int(ns.Fd())})
	if errors.Is(err, os.ErrPermission) {
		return fault.Because(err, "cannot list the UNIX sockets of the job: "+err.Error(), "run as root, with CAP_SYS_ADMIN")
	}
	if err != nil {
		return fmt.Errorf("list UNIX sockets: %w", err)
	}
	defer conn.Close()
	const byFamily, showName, showPeer, showIcons, showQueue = 20, 1, 4, 8, 16
	request := make([]byte, 24)                         // struct unix_diag_req
	request[0] = unix.AF_UNIX                           // sdiag_family
	binary.NativeEndian.PutUint32(request[4:], 1<<31-1) // udiag_states: all
	binary.NativeEndian.PutUint32(request[12:], showName|showPeer|showIcons|showQueue)
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: byFamily, Flags: netlink.Request | netlink.Dump}, Data: request,
	})
	if err != nil {
		return fmt.Errorf("list UNIX sockets: %w", err)
	}
	waiting := make(map[uint64]uint64) // from sockets that are not accepted yet to those that listen
	for _, message := range messages {
		const head = 16 // struct unix_diag_msg: family, type, state, pad, inode, cookie
		if len(message.Data) < head {
			continue
		}
		socket := unixSocket{sort: message.Data[1]}
		inode := uint64(binary.NativeEndian.Uint32(message.Data[4:]))
		attributes, err := netlink.NewAttributeDecoder(message.Data[head:])
		if err != nil {
			return fmt.Errorf("list UNIX sockets: %w", err)
		}
		for attributes.Next() {
			switch attributes.Type() {
			case 0: // UNIX_DIAG_NAME
				socket.address = printableName(attributes.Bytes())
			case 2: // UNIX_DIAG_PEER
				socket.peer = uint64(attributes.Uint32())
			case 3: // UNIX_DIAG_ICONS
				for client := range slices.Chunk(attributes.Bytes(), 4) {
					number := binary.NativeEndian.Uint32(client)
					waiting[uint64(number)] = inode
					if number == 0 {
						socket.dead++
					}
				}
			case 4: // UNIX_DIAG_RQLEN: received, sent
				if queue := attributes.Bytes(); len(queue) == 8 {
					socket.unread = binary.NativeEndian.Uint32(queue[4:])
				}
			}
		}
		to[inode] = socket
	}
	for client, listener := range waiting {
		if socket, known := to[client]; known && socket.peer == 0 {
			socket.peer, socket.waits = listener, true
			to[client] = socket
		}
	}
	return nil
}

// printableName returns the name of a socket as /proc/net/unix has it: @ stands for NUL.
func printableName(name []byte) string {
	text := string(name)
	if strings.HasPrefix(text, "/") {
		return strings.TrimRight(text, "\x00")
	}
	return strings.ReplaceAll(text, "\x00", "@")
}

// tcpSockets returns the TCP sockets of a network namespace that a process is in, which it reads
// once: the kernel takes long for it.
func (s *snapshot) tcpSockets(namespace string, pid int) ([]proc.TCPSocket, error) {
	if sockets, known := s.tcp[namespace]; known {
		return sockets, nil
	}
	sockets, err := proc.TCPSockets(pid)
	if err == nil {
		s.tcp[namespace] = sockets
	}
	return sockets, err
}

// connected finds a process with a TCP connection, 0 if there is none.
func (s *snapshot) connected() (pid int) {
	ours := s.inodes("socket")
	_ = eachNetwork(ours, func(l *look) error {
		sockets, _ := s.tcpSockets(l.spaces["net"], l.pid) // it may have ended
		for _, socket := range sockets {
			if with := ours[socket.Inode]; with != nil && socket.Connected() {
				pid = with.of.pid
			}
		}
		return nil
	})
	return pid
}

// addressFindings refuse TCP sockets that are bound to addresses which this host does not have,
// or has no more. criu could not bind them again.
func (s *snapshot) addressFindings() (preflight.Findings, error) {
	ours := s.inodes("socket")
	if len(ours) == 0 {
		return nil, nil
	}
	own, err := proc.OwnAddresses()
	if err != nil {
		return nil, err
	}
	sockets, err := s.tcpSockets(namespaceOf("self", "net"), os.Getpid())
	if err != nil {
		return nil, err
	}
	var findings preflight.Findings
	for _, socket := range sockets {
		a := socket.Local.Addr()
		if f, is := ours[socket.Inode]; is && !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(own, a) {
			findings = append(findings, f.of.about(preflight.New(preflight.FindingTCPAddress, fmt.Sprintf("has a TCP socket that is bound to %v, and this host has no such address", socket.Local),
				"give this host the address again (ip addr add), or let the job close the socket")))
		}
	}
	return findings, nil
}
