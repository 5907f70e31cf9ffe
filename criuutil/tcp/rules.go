package tcp

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// criu makes a table for each dump. Its name begins so, and has a number that nobody else is told.
const tablePrefix = "CRIU-"

// connectionSets are the sets of a table with the connections whose packets are dropped: their
// ends, that of the sender first, each followed by its port, in words of 32 bits.
var connectionSets = [...]string{"conns4", "conns6"}

// LetPass removes the rules that drop the packets of the connections. In a network namespace of
// their own, criu's rules drop all packets.
func (c *Connections) LetPass() error {
	var errs []error
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return err
	}
	for _, namespace := range c.namespaces {
		info, err := namespace.Stat()
		if err == nil {
			err = c.letPassIn(namespace, !os.SameFile(own, info))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("the packets of the job's TCP connections may be dropped: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (c *Connections) letPassIn(namespace *os.File, all bool) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(namespace.Fd())), nftables.AsLasting())
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil // no nftables
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseLasting() }()
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, table := range tables {
		if !strings.HasPrefix(table.Name, tablePrefix) {
			continue
		}
		if ours, err := c.has(conn, table); err != nil || !ours && !all {
			if err != nil {
				return err
			}
			continue
		}
		conn.DelTable(table)
		if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove the table %s of nftables: %w", table.Name, err)
		}
	}
	return nil
}

// has reports whether a table is about one of the connections.
func (c *Connections) has(conn *nftables.Conn, table *nftables.Table) (bool, error) {
	for _, name := range connectionSets {
		set, err := conn.GetSetByName(table, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return false, err
		}
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return false, err
		}
		for _, element := range elements {
			if slices.ContainsFunc(c.ends, func(e ends) bool { return string(element.Key) == string(e.key()) }) {
				return true, nil
			}
		}
	}
	return false, nil
}

// key is how a set has a connection.
func (e ends) key() (key []byte) {
	for _, end := range []struct {
		address []byte
		port    uint16
	}{{e.local.Addr().AsSlice(), e.local.Port()}, {e.remote.Addr().AsSlice(), e.remote.Port()}} {
		key = append(key, end.address...)
		key = append(key, byte(end.port>>8), byte(end.port), 0, 0)
	}
	return key
}
