package pstree

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
)

// TCPAddresses returns the local addresses of the TCP sockets of an image that a restore binds in
// criu's own network namespace.
func TCPAddresses(dir string) ([]netip.AddrPort, error) {
	tree, err := Read(dir)
	if err != nil || tree.OwnNetwork {
		return nil, err
	}
	entries, err := readEntries(dir, "files.img")
	if err != nil {
		return nil, err
	}
	var addresses []netip.AddrPort
	for _, entry := range entries {
		err := eachField(entry, func(number protowire.Number, _ uint64, socket []byte) error {
			const inetSocket = 4
			if number != inetSocket {
				return nil
			}
			address, isTCP, err := parseInetSocket(socket)
			if isTCP && address.Port() != 0 {
				addresses = append(addresses, address)
			}
			return err
		})
		if err != nil {
			return nil, imageError(dir, "files.img", err)
		}
	}
	return addresses, nil
}

// parseInetSocket reads the local address of a socket, whose words are in network order.
func parseInetSocket(socket []byte) (_ netip.AddrPort, isTCP bool, err error) {
	var port uint16
	var words []byte
	err = eachField(socket, func(number protowire.Number, value uint64, _ []byte) error {
		switch number {
		case 5:
			isTCP = value == unix.IPPROTO_TCP
		case 7:
			port = uint16(value)
		case 11:
			words = binary.NativeEndian.AppendUint32(words, uint32(value))
		}
		return nil
	})
	address, _ := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(address.Unmap(), port), isTCP, err
}
