package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Settings is what a process was given that criu does not restore, and that can be set from outside.
type Settings struct {
	PID            int             `json:"pid"`                       // in its innermost pid namespace
	CoredumpFilter string          `json:"coredump_filter,omitempty"` // as /proc has it
	Sockets        []SocketSetting `json:"sockets,omitempty"`
	Requests       []Request       `json:"requests,omitempty"` // that it must make again itself
}

// SocketSetting is an option of a socket with another value than a new socket has.
type SocketSetting struct {
	FD     int    `json:"fd"`
	Option string `json:"option"` // its name in the table below
	Value  []byte `json:"value"`
	Device string `json:"device,omitempty"` // of a multicast group
}

// lostOptions are options of sockets that criu neither reads nor sets. To read or set one has no other effect.
var lostOptions = map[string]struct{ level, option int }{
	"SO_DEBUG":                  {unix.SOL_SOCKET, unix.SO_DEBUG},
	"SO_REUSEADDR":              {unix.SOL_SOCKET, unix.SO_REUSEADDR},
	"SO_TIMESTAMP":              {unix.SOL_SOCKET, unix.SO_TIMESTAMP},
	"SO_TIMESTAMPNS":            {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS},
	"SO_TIMESTAMP_NEW":          {unix.SOL_SOCKET, unix.SO_TIMESTAMP_NEW},
	"SO_TIMESTAMPNS_NEW":        {unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW},
	"SO_RXQ_OVFL":               {unix.SOL_SOCKET, unix.SO_RXQ_OVFL},
	"SO_WIFI_STATUS":            {unix.SOL_SOCKET, unix.SO_WIFI_STATUS},
	"SO_PEEK_OFF":               {unix.SOL_SOCKET, unix.SO_PEEK_OFF},
	"SO_NOFCS":                  {unix.SOL_SOCKET, unix.SO_NOFCS},
	"SO_LOCK_FILTER":            {unix.SOL_SOCKET, unix.SO_LOCK_FILTER},
	"SO_SELECT_ERR_QUEUE":       {unix.SOL_SOCKET, unix.SO_SELECT_ERR_QUEUE},
	"SO_BUSY_POLL":              {unix.SOL_SOCKET, unix.SO_BUSY_POLL},
	"SO_PREFER_BUSY_POLL":       {unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL},
	"SO_MAX_PACING_RATE":        {unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE},
	"SO_ZEROCOPY":               {unix.SOL_SOCKET, unix.SO_ZEROCOPY},
	"SO_RCVMARK":                {unix.SOL_SOCKET, unix.SO_RCVMARK},
	"SO_PASSPIDFD":              {unix.SOL_SOCKET, unix.SO_PASSPIDFD},
	"SO_RCVPRIORITY":            {unix.SOL_SOCKET, unix.SO_RCVPRIORITY},
	"SO_PASSRIGHTS":             {unix.SOL_SOCKET, unix.SO_PASSRIGHTS},
	"IP_TOS":                    {unix.IPPROTO_IP, unix.IP_TOS},
	"IP_TTL":                    {unix.IPPROTO_IP, unix.IP_TTL},
	"IP_RECVOPTS":               {unix.IPPROTO_IP, unix.IP_RECVOPTS},
	"IP_RETOPTS":                {unix.IPPROTO_IP, unix.IP_RETOPTS},
	"IP_PKTINFO":                {unix.IPPROTO_IP, unix.IP_PKTINFO},
	"IP_MTU_DISCOVER":           {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER},
	"IP_RECVERR":                {unix.IPPROTO_IP, unix.IP_RECVERR},
	"IP_RECVTTL":                {unix.IPPROTO_IP, unix.IP_RECVTTL},
	"IP_RECVTOS":                {unix.IPPROTO_IP, unix.IP_RECVTOS},
	"IP_PASSSEC":                {unix.IPPROTO_IP, unix.IP_PASSSEC},
	"IP_TRANSPARENT":            {unix.IPPROTO_IP, unix.IP_TRANSPARENT},
	"IP_RECVORIGDSTADDR":        {unix.IPPROTO_IP, unix.IP_RECVORIGDSTADDR},
	"IP_MINTTL":                 {unix.IPPROTO_IP, unix.IP_MINTTL},
	"IP_CHECKSUM":               {unix.IPPROTO_IP, unix.IP_CHECKSUM},
	"IP_BIND_ADDRESS_NO_PORT":   {unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT},
	"IP_RECVFRAGSIZE":           {unix.IPPROTO_IP, unix.IP_RECVFRAGSIZE},
	"IP_RECVERR_RFC4884":        {unix.IPPROTO_IP, unix.IP_RECVERR_RFC4884},
	"IP_MULTICAST_TTL":          {unix.IPPROTO_IP, unix.IP_MULTICAST_TTL},
	"IP_MULTICAST_LOOP":         {unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP},
	"IP_MULTICAST_ALL":          {unix.IPPROTO_IP, unix.IP_MULTICAST_ALL},
	"IP_LOCAL_PORT_RANGE":       {unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE},
	"IPV6_2292PKTINFO":          {unix.IPPROTO_IPV6, unix.IPV6_2292PKTINFO},
	"IPV6_2292HOPOPTS":          {unix.IPPROTO_IPV6, unix.IPV6_2292HOPOPTS},
	"IPV6_2292DSTOPTS":          {unix.IPPROTO_IPV6, unix.IPV6_2292DSTOPTS},
	"IPV6_2292RTHDR":            {unix.IPPROTO_IPV6, unix.IPV6_2292RTHDR},
	"IPV6_2292HOPLIMIT":         {unix.IPPROTO_IPV6, unix.IPV6_2292HOPLIMIT},
	"IPV6_FLOWINFO":             {unix.IPPROTO_IPV6, 11},
	"IPV6_UNICAST_HOPS":         {unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS},
	"IPV6_MULTICAST_IF":         {unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF},
	"IPV6_MULTICAST_HOPS":       {unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS},
	"IPV6_MULTICAST_LOOP":       {unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP},
	"IPV6_MULTICAST_ALL":        {unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL},
	"IPV6_MTU_DISCOVER":         {unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER},
	"IPV6_RECVERR":              {unix.IPPROTO_IPV6, unix.IPV6_RECVERR},
	"IPV6_ROUTER_ALERT_ISOLATE": {unix.IPPROTO_IPV6, unix.IPV6_ROUTER_ALERT_ISOLATE},
	"IPV6_RECVERR_RFC4884":      {unix.IPPROTO_IPV6, unix.IPV6_RECVERR_RFC4884},
	"IPV6_FLOWINFO_SEND":        {unix.IPPROTO_IPV6, 33},
	"IPV6_RECVPKTINFO":          {unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO},
	"IPV6_RECVHOPLIMIT":         {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT},
	"IPV6_RECVHOPOPTS":          {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPOPTS},
	"IPV6_RECVRTHDR":            {unix.IPPROTO_IPV6, unix.IPV6_RECVRTHDR},
	"IPV6_RECVDSTOPTS":          {unix.IPPROTO_IPV6, unix.IPV6_RECVDSTOPTS},
	"IPV6_RECVPATHMTU":          {unix.IPPROTO_IPV6, unix.IPV6_RECVPATHMTU},
	"IPV6_DONTFRAG":             {unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG},
	"IPV6_RECVTCLASS":           {unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS},
	"IPV6_TCLASS":               {unix.IPPROTO_IPV6, unix.IPV6_TCLASS},
	"IPV6_AUTOFLOWLABEL":        {unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL},
	"IPV6_MINHOPCOUNT":          {unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT},
	"IPV6_RECVORIGDSTADDR":      {unix.IPPROTO_IPV6, unix.IPV6_RECVORIGDSTADDR},
	"IPV6_RECVFRAGSIZE":         {unix.IPPROTO_IPV6, unix.IPV6_RECVFRAGSIZE},
	"TCP_SYNCNT":                {unix.IPPROTO_TCP, unix.TCP_SYNCNT},
	"TCP_LINGER2":               {unix.IPPROTO_TCP, unix.TCP_LINGER2},
	"TCP_DEFER_ACCEPT":          {unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT},
	"TCP_CONGESTION":            {unix.IPPROTO_TCP, unix.TCP_CONGESTION},
	"TCP_THIN_LINEAR_TIMEOUTS":  {unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS},
	"TCP_USER_TIMEOUT":          {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	"TCP_FASTOPEN":              {unix.IPPROTO_TCP, unix.TCP_FASTOPEN},
	"TCP_NOTSENT_LOWAT":         {unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT},
	"TCP_SAVE_SYN":              {unix.IPPROTO_TCP, unix.TCP_SAVE_SYN},
	"TCP_FASTOPEN_NO_COOKIE":    {unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE},
	"TCP_INQ":                   {unix.IPPROTO_TCP, unix.TCP_INQ},
	"TCP_TX_DELAY":              {unix.IPPROTO_TCP, unix.TCP_TX_DELAY},
	"UDP_NO_CHECK6_TX":          {unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX},
	"UDP_NO_CHECK6_RX":          {unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX},
	"UDP_SEGMENT":               {unix.IPPROTO_UDP, unix.UDP_SEGMENT},
	"UDP_GRO":                   {unix.IPPROTO_UDP, unix.UDP_GRO},
	"MCAST_JOIN_GROUP":          {unix.IPPROTO_IP, joinGroup}, // cannot be read like others: see joined
	"MCAST_JOIN_GROUP (IPv6)":   {unix.IPPROTO_IPV6, joinGroup},
	"NETLINK_PKTINFO":           {unix.SOL_NETLINK, unix.NETLINK_PKTINFO},
	"NETLINK_BROADCAST_ERROR":   {unix.SOL_NETLINK, unix.NETLINK_BROADCAST_ERROR},
	"NETLINK_NO_ENOBUFS":        {unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS},
	"NETLINK_LISTEN_ALL_NSID":   {unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID},
	"NETLINK_CAP_ACK":           {unix.SOL_NETLINK, unix.NETLINK_CAP_ACK},
	"NETLINK_EXT_ACK":           {unix.SOL_NETLINK, unix.NETLINK_EXT_ACK},
	"NETLINK_GET_STRICT_CHK":    {unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK},
}

var settableFamilies = []int{unix.AF_INET, unix.AF_INET6, unix.AF_UNIX, unix.AF_NETLINK}

// The most that an image may ask for.
const (
	maxSettings    = 1 << 16 // of one process
	maxOptionBytes = groupBytes
)

// Validate refuses what no dump can have written.
func (s Settings) Validate() error {
	if s.PID <= 0 || len(s.Sockets) > maxSettings || len(s.Requests) > maxSettings {
		return fmt.Errorf("invalid settings of process %d", s.PID)
	}
	if _, err := strconv.ParseUint(s.CoredumpFilter, 16, 32); err != nil && s.CoredumpFilter != "" {
		return fmt.Errorf("invalid coredump filter %q of process %d", s.CoredumpFilter, s.PID)
	}
	for _, request := range s.Requests {
		if err := request.validate(); err != nil {
			return fmt.Errorf("process %d: %w", s.PID, err)
		}
	}
	for _, socket := range s.Sockets {
		_, known := lostOptions[socket.Option]
		size := len(socket.Value)
		if !known || socket.FD < 0 || size == 0 || size > maxOptionBytes || socket.Device != "" && size != groupBytes {
			return fmt.Errorf("invalid option %q of descriptor %d of process %d", socket.Option, socket.FD, s.PID)
		}
	}
	return nil
}

func coredumpFile(pid int) string { return fmt.Sprintf("/proc/%d/coredump_filter", pid) }

func coredumpFilter(pid int) string {
	text, _ := os.ReadFile(coredumpFile(pid))
	return strings.TrimSpace(string(text))
}

// ReadSettings reads what a process with this status, these threads and these descriptors of sockets has been given;
// nil if that is nothing. What it cannot read it leaves out.
func ReadSettings(pid int, status Status, threads, sockets []int) (*Settings, error) {
	s := &Settings{PID: status.ImagePID()}
	if filter := coredumpFilter(pid); filter != coredumpFilter(os.Getpid()) { // which every process has from its parent
		s.CoredumpFilter = filter
	}
	type optionOf struct {
		fresh  int
		option string
	}
	usual := make(map[optionOf][]byte)
	groups := sync.OnceValue(func() []group { return groupsOf(pid) })
	err := eachSocket(pid, sockets, func(fd, shared int, fresh func() int) {
		for name, o := range lostOptions {
			value, err := getOption(shared, o.level, o.option)
			if err != nil {
				continue
			}
			of := optionOf{fresh(), name}
			if usual[of] == nil {
				usual[of], _ = getOption(of.fresh, o.level, o.option)
			}
			if usual[of] != nil && !bytes.Equal(value, usual[of]) && canBeSet(of.fresh, o.level, o.option, value, usual[of]) {
				s.Sockets = append(s.Sockets, SocketSetting{FD: fd, Option: name, Value: value})
			}
		}
		s.Sockets = append(s.Sockets, joined(fd, shared, groups)...)
	})
	requests, requestsErr := readRequests(pid, threads)
	s.Requests = requests
	if err = errors.Join(err, requestsErr); len(s.Sockets) > maxSettings || len(requests) > maxSettings {
		return nil, errors.Join(err, fmt.Errorf("process %d has too many settings", pid))
	}
	if s.CoredumpFilter == "" && len(s.Sockets) == 0 && len(requests) == 0 {
		return nil, err
	}
	// Backwards, because SO_TIMESTAMP_NEW unsets SO_TIMESTAMPNS_NEW.
	slices.SortFunc(s.Sockets, func(a, b SocketSetting) int { return strings.Compare(b.key(), a.key()) })
	return s, err
}

func (s SocketSetting) key() string { return fmt.Sprintf("%09d %s", s.FD, s.Option) }

// Apply gives a process what it had. The error names what it could not be given.
func (s Settings) Apply(pid int) error {
	var errs []error
	if s.CoredumpFilter != "" {
		if err := os.WriteFile(coredumpFile(pid), []byte("0x"+s.CoredumpFilter), 0); err != nil {
			errs = append(errs, fmt.Errorf("its coredump filter could not be set: %w", err))
		}
	}
	if len(s.Sockets) == 0 {
		return errors.Join(errs...)
	}
	of := make(map[int][]SocketSetting) // a job may have thousands of sockets
	for _, socket := range s.Sockets {
		of[socket.FD] = append(of[socket.FD], socket)
	}
	open, err := Descriptors(pid)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var sockets []int // and nothing else: to close a duplicate of a file might wait for a server
	for fd, link := range open {
		if strings.HasPrefix(link, "socket:") {
			sockets = append(sockets, fd)
		}
	}
	err = eachSocket(pid, sockets, func(fd, shared int, _ func() int) {
		for _, socket := range of[fd] {
			o, known := lostOptions[socket.Option]
			if !known {
				continue
			}
			value, err := socket.onDevice(shared)
			if err == nil {
				err = unix.SetsockoptString(shared, o.level, o.option, string(value))
			}
			// Another process that shares the socket may have joined the group.
			if err != nil && !(socket.Device != "" && errors.Is(err, unix.EADDRINUSE)) {
				errs = append(errs, fmt.Errorf("%s of its socket (descriptor %d) could not be set: %w", socket.Option, fd, err))
			}
		}
	})
	return errors.Join(append(errs, err)...)
}

// eachSocket does something with a duplicate of each of these sockets of a process. fresh makes a new one of the same
// kind.
func eachSocket(pid int, sockets []int, do func(fd, shared int, fresh func() int)) error {
	process, err := Open(pid)
	if err != nil {
		return err
	}
	defer process.Close()
	usual := make(map[[3]int]int)
	defer func() {
		for _, fd := range usual {
			unix.Close(fd)
		}
	}()
	for _, fd := range sockets {
		shared, err := process.DuplicateDescriptor(fd)
		if err != nil {
			continue // it was closed, or may not be shared: then criu cannot dump it either
		}
		var kind [3]int
		for i, option := range []int{unix.SO_DOMAIN, unix.SO_TYPE, unix.SO_PROTOCOL} {
			kind[i], _ = unix.GetsockoptInt(shared, unix.SOL_SOCKET, option)
		}
		if slices.Contains(settableFamilies, kind[0]) {
			do(fd, shared, func() int {
				if _, known := usual[kind]; !known {
					made, err := unix.Socket(kind[0], kind[1]|unix.SOCK_CLOEXEC, kind[2])
					if err != nil {
						return -1
					}
					usual[kind] = made
				}
				return usual[kind]
			})
		}
		unix.Close(shared)
	}
	return nil
}

// canBeSet reports whether a program can have set a value: that of IP_MULTICAST_TTL in a TCP connection, for one,
// comes with its first packet. The socket is left with its usual value.
func canBeSet(fresh, level, option int, value, usual []byte) bool {
	if unix.SetsockoptString(fresh, level, option, string(value)) != nil {
		return false
	}
	_ = unix.SetsockoptString(fresh, level, option, string(usual))
	return true
}

func getOption(fd, level, option int) ([]byte, error) {
	return getOptionInto(fd, level, option, make([]byte, maxOptionBytes))
}

// getOptionInto is for an option that is told something, too.
func getOptionInto(fd, level, option int, value []byte) ([]byte, error) {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil, errno
	}
	return value[:min(int(size), len(value))], nil
}
