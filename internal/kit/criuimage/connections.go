package criuimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	sk_inet "github.com/checkpoint-restore/go-criu/v7/crit/images/sk-inet"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// FilesName is the image of open files.
const FilesName = "files.img"

// TCP states, as criu and the kernel count them.
const (
	tcpClose  = 7
	tcpListen = 10
)

// Connection is a TCP connection of a process, or where a UDP socket is connected to.
type Connection struct{ Local, Remote netip.AddrPort }

func (c Connection) String() string { return c.Local.String() + " to " + c.Remote.String() }

// OutsideConnections returns the connections of the images that lead out of them: see [FileChanges].
func OutsideConnections(dir string) ([]Connection, error) {
	entries, err := readFiles(dir)
	if err != nil {
		return nil, err
	}
	var outside []Connection
	for _, entry := range outsideOf(entries) {
		outside = append(outside, connectionOf(entry))
	}
	return outside, nil
}

// FileChanges is how the files that a restore opens are to differ from those of an image.
type FileChanges struct {
	// CloseOutside puts sockets that are not connected in place of TCP connections whose other end is
	// not in the image, and in place of UDP sockets that are connected to where this network does not lead.
	CloseOutside bool
	// NameSocket returns the name that a UNIX socket gets instead of the one in the image. Abstract
	// names begin with NUL.
	NameSocket func(name string) string
}

// WriteChangedFiles writes the image of open files of dir to another place, with changes. It writes
// nothing and returns false if nothing changes.
func WriteChangedFiles(dir, to string, changes FileChanges) (changed bool, err error) {
	entries, err := readFiles(dir)
	if err != nil {
		return false, err
	}
	if changes.CloseOutside {
		for _, socket := range outsideOf(entries) {
			socket.State = proto.Uint32(tcpClose)
			socket.SrcPort, socket.DstPort = proto.Uint32(0), proto.Uint32(0)
			clear(socket.SrcAddr)
			clear(socket.DstAddr)
			changed = true
		}
	}
	for _, entry := range entries {
		if socket := entry.GetUsk(); len(socket.GetName()) > 0 {
			name := changes.NameSocket(string(socket.GetName()))
			changed = changed || name != string(socket.GetName())
			socket.Name = []byte(name)
		}
	}
	if !changed {
		return false, nil
	}
	data, _, err := readFrames(dir, FilesName, "FILES")
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		body, err := proto.Marshal(entry)
		if err != nil {
			return false, fmt.Errorf("image %s: %w", FilesName, err)
		}
		data = binary.LittleEndian.AppendUint32(data, uint32(len(body)))
		data = append(data, body...)
	}
	return true, os.WriteFile(filepath.Join(to, FilesName), data, 0o600)
}

// outsideOf returns the sockets among the open files whose other end is not among them: those of TCP, and those of UDP
// whose other end cannot be reached from this network, to which criu could not connect them.
func outsideOf(entries []*fdinfo.FileEntry) []*sk_inet.InetSkEntry {
	ends := make(map[Connection]bool)
	var connected, outside []*sk_inet.InetSkEntry
	for _, entry := range entries {
		socket := entry.GetIsk()
		if socket.GetProto() == unix.IPPROTO_UDP && socket.GetDstPort() != 0 && !Reaches(connectionOf(socket).Remote) {
			outside = append(outside, socket)
		}
		if isConnected(socket) {
			connected = append(connected, socket)
			ends[connectionOf(socket)] = true
		}
	}
	for _, socket := range connected {
		c := connectionOf(socket)
		if !ends[Connection{Local: c.Remote, Remote: c.Local}] {
			outside = append(outside, socket)
		}
	}
	return outside
}

// isConnected reports whether a socket is an end of a TCP connection.
func isConnected(socket *sk_inet.InetSkEntry) bool {
	return socket.GetProto() == unix.IPPROTO_TCP && socket.GetType() == unix.SOCK_STREAM && socket.GetDstPort() != 0 &&
		socket.GetState() != tcpClose && socket.GetState() != tcpListen
}

// Reaches reports whether there is a way from this network to an address. It sends nothing there.
func Reaches(to netip.AddrPort) bool {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, unix.ENETUNREACH)
}

func connectionOf(socket *sk_inet.InetSkEntry) Connection {
	return Connection{
		Local:  netip.AddrPortFrom(addressOf(socket.GetSrcAddr()), uint16(socket.GetSrcPort())),
		Remote: netip.AddrPortFrom(addressOf(socket.GetDstAddr()), uint16(socket.GetDstPort())),
	}
}

// addressOf turns the words of an address, which are in network order, into an address. A socket
// of IPv6 may be connected to one of IPv4.
func addressOf(words []uint32) netip.Addr { return wordsOf(words).Unmap() }

func wordsOf(words []uint32) netip.Addr {
	var data []byte
	for _, word := range words {
		data = binary.NativeEndian.AppendUint32(data, word)
	}
	address, _ := netip.AddrFromSlice(data)
	return address
}

// Binding is a socket of an image that waits for clients, TCP, or for datagrams, UDP.
type Binding struct {
	Address  netip.AddrPort
	Kind     int // SOCK_STREAM or SOCK_DGRAM
	OnlyIPv6 bool
	FreeBind bool // the address need not exist
}

// Sockets are the sockets of an image for which a restore needs addresses in criu's own network namespace.
type Sockets struct {
	// Bindings wait for others. Those that are bound to a device are left out, and UDP sockets that share their port.
	Bindings []Binding
	// Bound are the local addresses of all TCP sockets.
	Bound []netip.AddrPort
	// Local are the addresses that the network must have: those of all sockets, but for TCP connections that lead out of
	// the image.
	Local []netip.Addr
	// Inside are the TCP connections between processes of the image, as one of the ends sees them.
	Inside []Connection
}

// ReadSockets reads which sockets there are in an image with this tree.
func ReadSockets(dir string, tree Tree) (all Sockets, err error) {
	if tree.OwnNetwork {
		return all, nil
	}
	entries, err := readFiles(dir)
	outside := outsideOf(entries)
	for _, entry := range entries {
		s, kind := entry.GetIsk(), 0
		switch shares := s.GetOpts().GetReuseaddr() || s.GetOpts().GetSoReuseport(); {
		case s.GetProto() == unix.IPPROTO_TCP && s.GetState() == tcpListen:
			kind = unix.SOCK_STREAM
		case s.GetProto() == unix.IPPROTO_UDP && s.GetDstPort() == 0 && !shares:
			kind = unix.SOCK_DGRAM
		}
		address := netip.AddrPortFrom(wordsOf(s.GetSrcAddr()), uint16(s.GetSrcPort()))
		b := Binding{address, kind, s.GetV6Only(), s.GetIpOpts().GetFreebind()}
		onDevice := s.GetIfname() != "" || s.GetOpts().GetSoBoundDev() != ""
		if kind != 0 && address.Port() != 0 && address.IsValid() && !onDevice && !slices.Contains(all.Bindings, b) {
			all.Bindings = append(all.Bindings, b)
		}
		local := connectionOf(s).Local
		if s.GetProto() == unix.IPPROTO_TCP && local.Port() != 0 {
			all.Bound = append(all.Bound, local)
		}
		if slices.Contains(outside, s) {
			continue
		}
		at := local.Addr() // of IPv6, those of a link are nothing without the device
		isOne := at.IsGlobalUnicast() || at.IsLoopback() || at.Is4() && at.IsLinkLocalUnicast()
		if isOne && !onDevice && !b.FreeBind && !slices.Contains(all.Local, at) {
			all.Local = append(all.Local, at)
		}
		if c := connectionOf(s); isConnected(s) && !slices.Contains(all.Inside, Connection{c.Remote, c.Local}) {
			all.Inside = append(all.Inside, c)
		}
	}
	return all, err
}
