package inventory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// UNIXSocket is a UNIX socket as the kernel lists it (unix_diag).
type UNIXSocket struct {
	Sort    byte // SOCK_STREAM and the like
	Address string
	Peer    uint64 // the inode of the other end; 0 if there is none
	Waits   bool   // it is connected, and not accepted yet
	Unread  uint32 // bytes that it has sent and that are not read
	Dead    int    // clients in its queue that have closed their ends
}

type unixAnswer map[uint64]UNIXSocket

// UNIXSockets returns the UNIX sockets of the networks of the tree, its own and others, by inode.
func (t *Tree) UNIXSockets() (map[uint64]UNIXSocket, error) { return t.unix.get(t.listUNIX) }

// UNIXSocketsNow is [Tree.UNIXSockets] as they are by now: for who waits until they change.
func (t *Tree) UNIXSocketsNow() (map[uint64]UNIXSocket, error) { return t.listUNIX() }

func (t *Tree) listUNIX() (unixAnswer, error) {
	known := make(unixAnswer)
	return known, t.eachNetwork(func(p *Process) error {
		return listUNIXSockets(fmt.Sprintf("/proc/%d/ns/net", p.PID), known)
	})
}

// eachNetwork does something once for each network namespace of processes with sockets.
func (t *Tree) eachNetwork(do func(*Process) error) error {
	done := make(map[string]bool)
	for _, f := range t.Inodes("socket") {
		namespace := f.Of.Namespace("net")
		if done[namespace] {
			continue
		}
		done[namespace] = true
		if err := do(f.Of); err != nil {
			return err
		}
	}
	return nil
}

// listUNIXSockets adds the UNIX sockets of a network namespace by their inodes.
func listUNIXSockets(namespace string, to map[uint64]UNIXSocket) error {
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
		socket := UNIXSocket{Sort: message.Data[1]}
		inode := uint64(binary.NativeEndian.Uint32(message.Data[4:]))
		attributes, err := netlink.NewAttributeDecoder(message.Data[head:])
		if err != nil {
			return fmt.Errorf("list UNIX sockets: %w", err)
		}
		for attributes.Next() {
			switch attributes.Type() {
			case 0: // UNIX_DIAG_NAME
				socket.Address = printableName(attributes.Bytes())
			case 2: // UNIX_DIAG_PEER
				socket.Peer = uint64(attributes.Uint32())
			case 3: // UNIX_DIAG_ICONS
				for client := range slices.Chunk(attributes.Bytes(), 4) {
					number := binary.NativeEndian.Uint32(client)
					waiting[uint64(number)] = inode
					if number == 0 {
						socket.Dead++
					}
				}
			case 4: // UNIX_DIAG_RQLEN: received, sent
				if queue := attributes.Bytes(); len(queue) == 8 {
					socket.Unread = binary.NativeEndian.Uint32(queue[4:])
				}
			}
		}
		to[inode] = socket
	}
	for client, listener := range waiting {
		if socket, known := to[client]; known && socket.Peer == 0 {
			socket.Peer, socket.Waits = listener, true
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

// TCPSockets returns the TCP sockets of a network namespace that a process is in, which it reads
// once: the kernel takes long for it. The caller must not change them.
func (t *Tree) TCPSockets(namespace string, pid int) ([]proc.TCPSocket, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if sockets, known := t.tcp[namespace]; known {
		return sockets, nil
	}
	sockets, err := proc.TCPSockets(pid)
	if err == nil {
		t.tcp[namespace] = sockets
	}
	return sockets, err
}

// TCPConnected finds a process of the tree with a TCP connection, 0 if there is none.
func (t *Tree) TCPConnected() (pid int) {
	ours := t.Inodes("socket")
	_ = t.eachNetwork(func(p *Process) error {
		sockets, _ := t.TCPSockets(p.Namespace("net"), p.PID) // it may have ended
		for _, socket := range sockets {
			if with := ours[socket.Inode]; with != nil && socket.Connected() {
				pid = with.Of.PID
			}
		}
		return nil
	})
	return pid
}

// HoldersOutside finds, for links of sockets and pipes, processes outside of the tree that have them open.
func (t *Tree) HoldersOutside(links map[string]bool) (map[string][]*File, error) {
	if len(links) == 0 {
		return nil, nil
	}
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	found := make(map[string][]*File)
	for _, pid := range all {
		if slices.Contains(t.PIDs, pid) {
			continue
		}
		open, _ := (&Process{PID: pid}).readDescriptors(links) // of one that has ended there are none
		for _, f := range open {
			found[f.Link] = append(found[f.Link], f)
		}
	}
	return found, nil
}
