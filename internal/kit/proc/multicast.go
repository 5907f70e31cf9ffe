package proc

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A socket does not list the multicast groups that it has joined, but answers for each. /proc lists those of its
// network namespace.

const (
	joinGroup   = 42 // MCAST_JOIN_GROUP
	groupFilter = 48 // MCAST_MSFILTER

	groupBytes  = 8 + 128 // of a struct group_req: the interface, and a sockaddr_storage
	filterBytes = groupBytes + 8
)

// group is a multicast group on an interface.
type group struct {
	level   int
	device  string
	request []byte // struct group_req
}

func groupOn(family, level int, index, device string, address []byte, at int) (group, error) {
	number, err := strconv.ParseUint(index, 10, 32)
	g := group{level, device, make([]byte, groupBytes)}
	binary.NativeEndian.PutUint32(g.request, uint32(number))
	binary.NativeEndian.PutUint16(g.request[8:], uint16(family))
	copy(g.request[at:], address)
	return g, err
}

// groupsOf lists the groups that anybody in the network namespace of a process has joined.
func groupsOf(pid int) (groups []group) {
	add := func(g group, err error) {
		if err == nil {
			groups = append(groups, g)
		}
	}
	text, _ := ReadText(fmt.Sprintf("/proc/%d/net/igmp", pid))
	var index, device string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 2 && line[0] != '\t':
			index, device = fields[0], fields[1]
		case len(fields) >= 2:
			address, err := hex.DecodeString(fields[0]) // a number in this machine's byte order
			if slices.Reverse(address); err == nil && len(address) == 4 {
				add(groupOn(unix.AF_INET, unix.IPPROTO_IP, index, device, address, 12))
			}
		}
	}
	text, _ = ReadText(fmt.Sprintf("/proc/%d/net/igmp6", pid))
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 3 {
			if address, err := hex.DecodeString(fields[2]); err == nil && len(address) == 16 {
				add(groupOn(unix.AF_INET6, unix.IPPROTO_IPV6, fields[0], fields[1], address, 16))
			}
		}
	}
	return groups
}

// joined returns those of the groups that a socket has joined, with any source.
func joined(fd, shared int, groups func() []group) (found []SocketSetting) {
	if kind, err := unix.GetsockoptInt(shared, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind == unix.SOCK_STREAM {
		return nil
	}
	for _, g := range groups() {
		filter := append(slices.Clone(g.request), make([]byte, filterBytes-groupBytes)...)
		if _, err := getOptionInto(shared, g.level, groupFilter, filter); err != nil {
			continue
		}
		if any := make([]byte, filterBytes-groupBytes); !slices.Equal(filter[groupBytes:], any) {
			continue // it excludes no source otherwise
		}
		name := "MCAST_JOIN_GROUP"
		if g.level == unix.IPPROTO_IPV6 {
			name = "MCAST_JOIN_GROUP (IPv6)"
		}
		found = append(found, SocketSetting{FD: fd, Option: name, Value: g.request, Device: g.device})
	}
	return found
}

// onDevice is the value of a group with the number that its interface has here, in the socket's network namespace.
func (s SocketSetting) onDevice(shared int) ([]byte, error) {
	if s.Device == "" {
		return s.Value, nil
	}
	request, err := unix.NewIfreq(s.Device)
	if err == nil {
		err = unix.IoctlIfreq(shared, unix.SIOCGIFINDEX, request)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", s.Device, err)
	}
	value := slices.Clone(s.Value)
	binary.NativeEndian.PutUint32(value, request.Uint32())
	return value, nil
}
