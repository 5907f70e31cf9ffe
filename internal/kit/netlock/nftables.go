package netlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// tablePrefix begins the names of criu's tables. What follows depends on criu's version, so a table
// is known by what is in it.
const tablePrefix = "CRIU-"

// removeTables removes criu's tables for the tree from a network namespace.
func (n *namespace) removeTables() error {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.inside.Fd())), nftables.AsLasting())
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	defer func() { _ = c.CloseLasting() }()
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if hasNoTables(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	for _, table := range tables {
		if !strings.HasPrefix(table.Name, tablePrefix) {
			continue
		}
		ours, err := n.isOurs(c, table)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("nftables: table %s: %w", table.Name, err)
		}
		if ours {
			c.DelTable(table)
		}
	}
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// hasNoTables tells by an error that there are no tables: the kernel is without nftables, or we must not see
// them, and could not have made them.
func hasNoTables(err error) bool {
	for _, errno := range []unix.Errno{unix.EOPNOTSUPP, unix.EINVAL, unix.EPERM, unix.EPROTONOSUPPORT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// isOurs reports whether a table of criu's holds back connections of the tree. A table without
// sets holds back everything in a namespace.
func (n *namespace) isOurs(c *nftables.Conn, table *nftables.Table) (bool, error) {
	sets, err := c.GetSets(table)
	if err != nil {
		return false, err
	}
	if len(sets) == 0 {
		return n.whole(), nil
	}
	for _, set := range sets {
		elements, err := c.GetSetElements(set)
		if err != nil {
			return false, err
		}
		for _, e := range elements {
			if held, ok := parseKey(e.Key); ok && n.has(held) {
				return true, nil
			}
		}
	}
	return false, nil
}

// parseKey reads an element of criu's sets: address, port, address, port, each in a field of whole
// 32-bit words.
func parseKey(key []byte) (c Connection, ok bool) {
	const port = 4
	size := len(key)/2 - port
	if size != 4 && size != 16 || len(key) != 2*(size+port) {
		return c, false
	}
	end := func(b []byte) netip.AddrPort {
		address, _ := netip.AddrFromSlice(b[:size])
		return netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(b[size:]))
	}
	return Connection{end(key), end(key[size+port:])}, true
}
