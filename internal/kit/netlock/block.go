package netlock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Block drops what comes for connections whose sockets are not here yet, in the network namespace of the
// calling program, until [Unblock]: the kernel would answer that there is no such connection, which ends it at
// the other end. It needs root and nftables.
func Block(name string, connections []Connection) error {
	c := new(nftables.Conn)
	table := c.AddTable(blockTable(name))
	chain := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	err := c.Flush()
	for some := range slices.Chunk(connections, 100) { // more do not fit into a message
		for _, held := range some {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(comesFor(held), &expr.Verdict{Kind: expr.VerdictDrop})})
		}
		err = errors.Join(err, c.Flush())
	}
	if err != nil {
		return fmt.Errorf("drop packets by nftables: %w", err)
	}
	return nil
}

// Unblock ends a [Block]. It succeeds if there is none.
func Unblock(name string) error {
	c := new(nftables.Conn)
	c.DelTable(blockTable(name))
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) && !hasNoTables(err) {
		return fmt.Errorf("no longer drop packets by nftables: %w", err)
	}
	return nil
}

func blockTable(name string) *nftables.Table {
	return &nftables.Table{Name: "cucriu-" + name, Family: nftables.TableFamilyINet}
}

// comesFor matches what comes from the other end of a connection.
func comesFor(c Connection) []expr.Any {
	family, source, destination := byte(unix.NFPROTO_IPV4), uint32(12), uint32(16) // offsets in the header
	if c.Local.Addr().Is6() {
		family, source, destination = unix.NFPROTO_IPV6, 8, 24
	}
	port := func(a netip.AddrPort) []byte { return binary.BigEndian.AppendUint16(nil, a.Port()) }
	var all []expr.Any
	is := func(load expr.Any, data []byte) {
		all = append(all, load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data})
	}
	field := func(base expr.PayloadBase, offset uint32, data []byte) {
		is(&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: uint32(len(data))}, data)
	}
	is(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, []byte{family})
	is(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{unix.IPPROTO_TCP})
	field(expr.PayloadBaseNetworkHeader, source, c.Remote.Addr().AsSlice())
	field(expr.PayloadBaseNetworkHeader, destination, c.Local.Addr().AsSlice())
	field(expr.PayloadBaseTransportHeader, 0, port(c.Remote))
	field(expr.PayloadBaseTransportHeader, 2, port(c.Local))
	return all
}
