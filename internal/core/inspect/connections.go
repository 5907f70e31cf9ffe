package inspect

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
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
		links[p.Link] = true
	}
	others, err := s.HoldersOutside(links)
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
			w.add("--ext-unix-sk",
				fmt.Sprintf("process %d sends to %s, a UNIX socket outside the tree", socket.Of.PID, socket.peerName), "")
		}
		if socket.reachableHere() && !slices.Contains(w.Options.Sockets, socket.peerName) {
			w.Options.Sockets = append(w.Options.Sockets, socket.peerName)
		}
	}
	for _, p := range pipes {
		at := slices.IndexFunc(others[p.Link], func(other *inventory.File) bool {
			reads, writes := other.Info().Access()
			return p.writes && reads || !p.writes && writes
		})
		if at < 0 {
			continue
		}
		w.Findings = append(w.Findings, p.finding(others[p.Link][at]))
		if p.writes {
			w.Options.Pipes = append(w.Options.Pipes, image.Pipe{Name: p.Link, Stderr: p.stderr})
		}
	}
	addresses, err := s.addressFindings()
	w.Findings = slices.Concat(w.Findings, addresses, s.queueFindings())
	return err
}

// oneSidedPipe is a pipe of which the tree has only ends of one kind.
type oneSidedPipe struct {
	*inventory.File
	writes bool // the tree writes into it; otherwise it only reads
	stderr bool // it is the standard error of a process, and no other descriptor
}

// oneSidedPipes finds them, in the order of their inodes.
func (s *snapshot) oneSidedPipes() []oneSidedPipe {
	type ends struct{ reads, writes, stderr bool }
	byInode := make(map[uint64]ends)
	for f := range s.Open {
		if inode, is := f.Inode("pipe"); is {
			reads, writes := f.Info().Access()
			e, known := byInode[inode]
			byInode[inode] = ends{e.reads || reads, e.writes || writes, (!known || e.stderr) && f.Number == "2"}
		}
	}
	var pipes []oneSidedPipe
	files := s.Inodes("pipe")
	for _, inode := range slices.Sorted(maps.Keys(files)) {
		if e := byInode[inode]; e.reads != e.writes {
			pipes = append(pipes, oneSidedPipe{files[inode], e.writes, e.stderr})
		}
	}
	return pipes
}

func (p oneSidedPipe) finding(other *inventory.File) preflight.Finding {
	if p.writes {
		return about(p.Of, preflight.New(preflight.FindingOutsidePipe,
			fmt.Sprintf("writes into a pipe (descriptor %s) to %s, which is outside the tree; "+
				"cucriu restore replaces that pipe by the standard output of cucriu restore", p.Number, processName(other.Of.PID)),
			fmt.Sprintf("with plain criu restore, give --inherit-fd 'fd[1]:%s', or the job dies at its next write", p.Link)))
	}
	return about(p.Of, preflight.New(preflight.FindingOutsidePipe,
		fmt.Sprintf("reads from a pipe (descriptor %s) from %s, which is outside the tree: "+
			"after a restore it reads end of file", p.Number, processName(other.Of.PID)),
		"if the job needs more of that input, let it read from a file"))
}

// unaccepted says what criu cannot dump of a connection that is not accepted yet; "" if it can.
func unaccepted(s inventory.UNIXSocket) string {
	switch {
	case s.Dead > 0:
		return fmt.Sprintf("listens on %s, and a client that it has not accepted yet has ended", s.Address)
	case s.Waits && s.Unread > 0:
		return "has sent data on a connection that the server has not accepted yet"
	}
	return ""
}

// outsideSocket is a socket of the tree that is connected to one outside of it.
type outsideSocket struct {
	*inventory.File
	inventory.UNIXSocket
	peerName string // empty if it has none
}

func (s outsideSocket) peerLink() string { return fmt.Sprintf("socket:[%d]", s.Peer) }

// datagrams reports whether criu can dump the connection: with --ext-unix-sk, and the
// restore connects to the name again.
func (s outsideSocket) datagrams() bool { return s.Sort == unix.SOCK_DGRAM && s.peerName != "" }

// reachableHere reports whether the name of the peer means the same socket to us: the
// process is in our namespaces.
func (s outsideSocket) reachableHere() bool {
	if filepath.IsAbs(s.peerName) {
		return s.Of.InOurs("mnt")
	}
	return strings.HasPrefix(s.peerName, "@") && s.Of.InOurs("net")
}

// finding refuses a connection that criu cannot dump. others have its other end.
func (s outsideSocket) finding(others []*inventory.File) preflight.Finding {
	to := "a socket outside the tree"
	if len(others) > 0 {
		to = processName(others[0].Of.PID) + " outside the tree"
	}
	if name := s.peerName + s.Address; name != "" {
		to += " (" + name + ")"
	}
	return about(s.Of, preflight.New(preflight.FindingUNIXSocket,
		fmt.Sprintf("is connected by a UNIX socket (descriptor %s) to %s, and criu cannot dump one half of a connection",
			s.Number, to), ""))
}

// queueFindings refuse connections in the queue of a server that criu cannot dump, if it does not take them soon.
func (s *snapshot) queueFindings() (findings preflight.Findings) {
	list := s.UNIXSockets
	lasts(func() bool {
		findings = nil
		ours := s.Inodes("socket")
		known, _ := list()
		list = s.UNIXSocketsNow
		for _, inode := range slices.Sorted(maps.Keys(ours)) {
			if why := unaccepted(known[inode]); why != "" {
				f := ours[inode]
				findings = append(findings, about(f.Of, preflight.New(preflight.FindingUNIXSocket,
					proc.Printable(fmt.Sprintf("%s (descriptor %s), which criu cannot dump", why, f.Number)),
					"try again when the server has accepted it")))
			}
		}
		return len(findings) > 0
	})
	return findings
}

// outsideSockets finds the UNIX sockets that are connected to sockets outside of the tree.
func (s *snapshot) outsideSockets() ([]outsideSocket, error) {
	ours := s.Inodes("socket")
	known, err := s.UNIXSockets()
	var outside []outsideSocket
	for _, inode := range slices.Sorted(maps.Keys(ours)) {
		socket := known[inode]
		if _, inside := ours[socket.Peer]; socket.Peer != 0 && !inside {
			outside = append(outside, outsideSocket{ours[inode], socket, known[socket.Peer].Address})
		}
	}
	return outside, err
}

// addressFindings refuse TCP sockets that are bound to addresses which this host does not have,
// or has no more. criu could not bind them again.
func (s *snapshot) addressFindings() (preflight.Findings, error) {
	ours := s.Inodes("socket")
	if len(ours) == 0 {
		return nil, nil
	}
	own, err := proc.OwnAddresses()
	if err != nil {
		return nil, err
	}
	sockets, err := s.TCPSockets(inventory.NamespaceOf("self", "net"), os.Getpid())
	if err != nil {
		return nil, err
	}
	var findings preflight.Findings
	for _, socket := range sockets {
		a := socket.Local.Addr()
		if f, is := ours[socket.Inode]; is && !a.IsUnspecified() && !a.IsLoopback() && !slices.Contains(own, a) {
			findings = append(findings, about(f.Of, preflight.New(preflight.FindingTCPAddress,
				fmt.Sprintf("has a TCP socket that is bound to %v, and this host has no such address", socket.Local),
				"give this host the address again (ip addr add), or let the job close the socket")))
		}
	}
	return findings, nil
}
