package preflight

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// unixSocket is a UNIX socket as the kernel lists it (unix_diag).
type unixSocket struct {
	kind byte // SOCK_STREAM and the like
	name string
	peer uint64 // the inode of the other end; 0 if there is none
}

// outsideSocket is a socket of the tree that is connected to one outside of it.
type outsideSocket struct {
	openFile
	unixSocket
	peerName string // empty if it has none
}

// datagrams reports whether criu can dump the connection: with --ext-unix-sk, and the
// restore connects to the name again.
func (s outsideSocket) datagrams() bool { return s.kind == unix.SOCK_DGRAM && s.peerName != "" }

// reachableHere reports whether the name of the peer means the same socket to us: the
// process is in our namespaces.
func (s outsideSocket) reachableHere() bool {
	kind := "net" // for a name without a file
	if filepath.IsAbs(s.peerName) {
		kind = "mnt"
	} else if !strings.HasPrefix(s.peerName, "@") {
		return false
	}
	return inOurs(s.pid, kind)
}

// outsideSockets finds the UNIX sockets that are connected to sockets outside of the tree.
func (t tree) outsideSockets() ([]outsideSocket, error) {
	ours := t.inodes("socket")
	known, listed := make(map[uint64]unixSocket), make(map[string]bool)
	for _, f := range ours {
		namespace := filepath.Join("/proc", strconv.Itoa(f.pid), "ns", "net")
		link, err := os.Readlink(namespace)
		if err != nil || listed[link] {
			continue // it has ended
		}
		listed[link] = true
		if err := listUnixSockets(namespace, known); err != nil {
			return nil, err
		}
	}
	var outside []outsideSocket
	for _, inode := range slices.Sorted(maps.Keys(ours)) {
		socket := known[inode]
		if _, inside := ours[socket.peer]; socket.peer != 0 && !inside {
			outside = append(outside, outsideSocket{ours[inode], socket, known[socket.peer].name})
		}
	}
	return outside, nil
}

// listUnixSockets adds the UNIX sockets of a network namespace by their inodes.
func listUnixSockets(namespace string, to map[uint64]unixSocket) error {
	ns, err := os.Open(namespace)
	if err != nil {
		return nil // its process has ended
	}
	defer ns.Close()
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: int(ns.Fd())})
	if err != nil {
		return fmt.Errorf("list UNIX sockets: %w", err)
	}
	defer conn.Close()
	const byFamily, showName, showPeer, showIcons = 20, 1, 4, 8
	request := make([]byte, 24)                         // struct unix_diag_req
	request[0] = unix.AF_UNIX                           // sdiag_family
	binary.NativeEndian.PutUint32(request[4:], 1<<31-1) // udiag_states: all
	binary.NativeEndian.PutUint32(request[12:], showName|showPeer|showIcons)
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
		socket := unixSocket{kind: message.Data[1]}
		inode := uint64(binary.NativeEndian.Uint32(message.Data[4:]))
		attributes, err := netlink.NewAttributeDecoder(message.Data[head:])
		if err != nil {
			return fmt.Errorf("list UNIX sockets: %w", err)
		}
		for attributes.Next() {
			switch attributes.Type() {
			case 0: // UNIX_DIAG_NAME
				socket.name = printableName(attributes.Bytes())
			case 2: // UNIX_DIAG_PEER
				socket.peer = uint64(attributes.Uint32())
			case 3: // UNIX_DIAG_ICONS
				for client := range slices.Chunk(attributes.Bytes(), 4) {
					waiting[uint64(binary.NativeEndian.Uint32(client))] = inode
				}
			}
		}
		to[inode] = socket
	}
	for client, listener := range waiting {
		if socket, known := to[client]; known && socket.peer == 0 {
			socket.peer = listener
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
