package netlock

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

const childVariable = "NETLOCK_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := talk(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// talk is a process with both ends of a TCP connection. It says which, and then, for each line that
// it reads, whether a message comes through.
func talk() error {
	if os.Getenv(childVariable) == "own" {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		return err
	}
	b, err := l.Accept()
	if err != nil {
		return err
	}
	fmt.Println(a.LocalAddr(), a.RemoteAddr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		deadline := time.Now().Add(time.Minute) // what is in repair mode fails at once
		_ = a.SetDeadline(deadline)
		_ = b.SetDeadline(deadline)
		_, err := io.WriteString(a, "x")
		if err == nil {
			_, err = io.ReadFull(b, make([]byte, 1))
		}
		fmt.Println(err == nil)
	}
	return nil
}

type talker struct {
	*proc.Process
	Connection
	in  io.Writer
	out *bufio.Scanner
}

// startTalker starts a process that talks, in a network namespace of its own or in ours.
func startTalker(t *testing.T, own bool) *talker {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"=shared")
	if own {
		cmd.Env = append(os.Environ(), childVariable+"=own")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	k := &talker{in: in, out: bufio.NewScanner(out)}
	k.out.Scan()
	local, remote, _ := strings.Cut(k.out.Text(), " ")
	k.Local, err = netip.ParseAddrPort(local)
	must(t, err)
	k.Remote, err = netip.ParseAddrPort(remote)
	must(t, err)
	k.Process, err = proc.Open(cmd.Process.Pid)
	must(t, err)
	t.Cleanup(func() { k.Close() })
	return k
}

func (k *talker) talks() bool {
	_, _ = io.WriteString(k.in, "\n")
	return k.out.Scan() && k.out.Text() == "true"
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// enterRepair does what criu does to the sockets of a process.
func (k *talker) enterRepair(t *testing.T) {
	t.Helper()
	sockets, err := socketsOf(k.Process)
	must(t, err)
	defer closeAll(sockets)
	if len(sockets) != 2 {
		t.Fatalf("the process has %d connected sockets", len(sockets))
	}
	for _, s := range sockets {
		must(t, proc.Use(s.File, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_REPAIR, 1) }))
	}
}

// rules is access to the rules in the namespace of a process.
func (k *talker) rules(t *testing.T) *nftables.Conn {
	t.Helper()
	ns, err := os.Open(filepath.Join("/proc", strconv.Itoa(k.PID), "ns", "net"))
	must(t, err)
	t.Cleanup(func() { ns.Close() })
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	must(t, err)
	return c
}

// lock makes a table as criu does, for one connection or, without one, for everything. If it drops,
// no packet of TCP comes through.
func (k *talker) lock(t *testing.T, name string, held *Connection, drops bool) {
	t.Helper()
	c := k.rules(t)
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
	if held != nil {
		set := &nftables.Set{Table: table, Name: "conns4", Concatenation: true, KeyType: nftables.MustConcatSetType(
			nftables.TypeIPAddr, nftables.TypeInetService, nftables.TypeIPAddr, nftables.TypeInetService)}
		must(t, c.AddSet(set, []nftables.SetElement{{Key: append(keyOf(held.Local), keyOf(held.Remote)...)}}))
	}
	if drops {
		chain := c.AddChain(&nftables.Chain{Table: table, Name: "output", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	}
	must(t, c.Flush())
}

func keyOf(end netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(end.Addr().AsSlice(), end.Port()), 0, 0)
}

func (k *talker) find(t *testing.T) *Locks {
	t.Helper()
	found, err := Find([]*proc.Process{k.Process})
	must(t, err)
	t.Cleanup(found.Close)
	return found
}

func (k *talker) tables(t *testing.T) (names string) {
	t.Helper()
	tables, err := k.rules(t).ListTablesOfFamily(nftables.TableFamilyINet)
	must(t, err)
	for _, table := range tables {
		names += table.Name + " "
	}
	return names
}

func TestConnectionsGoOn(t *testing.T) {
	for name, test := range map[string]struct {
		tables map[string]bool // whether the table is for the connection
		whole  string          // a table for everything
		left   string
	}{
		"repair mode alone":       {},
		"a table":                 {tables: map[string]bool{"CRIU-4711": true}},
		"a whole namespace":       {whole: "CRIU-a1b2"},
		"a table of another dump": {tables: map[string]bool{"CRIU-1": true, "CRIU-2": false}, left: "CRIU-2 "},
		"a table of others":       {tables: map[string]bool{"CRIU-1": true, "firewall": false}, left: "firewall "},
	} {
		t.Run(name, func(t *testing.T) {
			k := startTalker(t, true)
			if !k.talks() {
				t.Fatal("it does not talk")
			}
			k.enterRepair(t)
			other := Connection{netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")}
			for table, ours := range test.tables {
				if ours {
					k.lock(t, table, &k.Connection, true)
				} else {
					k.lock(t, table, &other, false)
				}
			}
			if test.whole != "" {
				k.lock(t, test.whole, nil, true)
			}
			if k.talks() {
				t.Fatal("nothing holds it back")
			}
			for range 2 { // it may be repeated
				must(t, k.find(t).Release(t.Context()))
			}
			if !k.talks() {
				t.Error("it is held back still")
			}
			if left := k.tables(t); left != test.left {
				t.Errorf("the tables %q are left, want %q", left, test.left)
			}
		})
	}
}

func TestForgottenRulesAreRemoved(t *testing.T) {
	k := startTalker(t, true)
	k.enterRepair(t)
	k.lock(t, "CRIU-1", &k.Connection, true)
	must(t, k.find(t).Remove(t.Context()))
	if left := k.tables(t); left != "" {
		t.Errorf("left: %s", left)
	}
	if k.talks() {
		t.Error("the sockets are to stay as they are")
	}
	k.lock(t, "CRIU-1", &k.Connection, true)
	found := k.find(t)
	rules := k.rules(t)
	must(t, k.Signal(unix.SIGKILL))
	must(t, k.WaitExit(t.Context()))
	must(t, found.Remove(t.Context()))
	if tables, err := rules.ListTablesOfFamily(nftables.TableFamilyINet); err != nil || len(tables) > 0 {
		t.Errorf("left after the process has ended: %v %v", tables, err)
	}
}

func TestConnectionsThatAreNotHeldBackStay(t *testing.T) {
	k := startTalker(t, false)
	must(t, k.find(t).Release(t.Context()))
	if !k.talks() {
		t.Error("it does not talk any more")
	}
}

// TestRulesOfIptables: as iptables 1.8.9 prints them, with both of its backends.
func TestRulesOfIptables(t *testing.T) {
	const listed = `-P INPUT ACCEPT
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N CRIU
-A INPUT -j CRIU
-A INPUT -s 10.77.0.1/32 -d 10.77.0.2/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 22 --dport 4711 -j DROP
-A INPUT -s 10.77.0.1/32 -d 10.77.0.2/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 22 --dport 4712 -j DROP
-A INPUT -s 10.77.0.1/32 -d 10.77.0.2/32 -p tcp -m tcp --sport 22 --dport 4711 -j DROP
-A OUTPUT -s 2001:db8::2/128 -d 2001:db8::1/128 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 4711 --dport 22 -j DROP
-A OUTPUT -j CRIU
-A CRIU -m mark --mark 0xc114 -j ACCEPT
-A CRIU -j DROP
`
	v4 := Connection{netip.MustParseAddrPort("10.77.0.2:4711"), netip.MustParseAddrPort("10.77.0.1:22")}
	v6 := Connection{netip.MustParseAddrPort("[2001:db8::2]:4711"), netip.MustParseAddrPort("[2001:db8::1]:22")}
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	must(t, err)
	n := &namespace{name: ours, sockets: []socket{{Connection: v4}, {Connection: v6}}}
	want := []string{
		"-D INPUT -s 10.77.0.1/32 -d 10.77.0.2/32 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 22 --dport 4711 -j DROP",
		"-D OUTPUT -s 2001:db8::2/128 -d 2001:db8::1/128 -p tcp -m mark ! --mark 0xc114 -m tcp --sport 4711 --dport 22 -j DROP",
	}
	check := func(want []string) {
		t.Helper()
		var got []string
		for _, rule := range n.rulesIn(listed) {
			got = append(got, strings.Join(rule, " "))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("removed:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	check(want)
	n.name = "net:[another]"
	check([]string{"-D INPUT -j CRIU", want[0], want[1], "-D OUTPUT -j CRIU", "-F CRIU", "-X CRIU"})
}

func TestAProgramRunsInsideANamespace(t *testing.T) {
	k := startTalker(t, true)
	ns, err := os.Open(filepath.Join("/proc", strconv.Itoa(k.PID), "ns", "net"))
	must(t, err)
	defer ns.Close()
	out, err := runInside(context.Background(), ns, "/usr/bin/readlink", "/proc/self/ns/net")
	must(t, err)
	theirs, err := os.Readlink(ns.Name())
	must(t, err)
	if strings.TrimSpace(out) != theirs {
		t.Errorf("it ran in %s, want %s", out, theirs)
	}
}

// TestManyConnectionsAreBlocked, and let through again, as often as is asked.
func TestManyConnectionsAreBlocked(t *testing.T) {
	var many []Connection
	for port := range uint16(3000) {
		v4 := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), port+1)
		v6 := netip.AddrPortFrom(netip.MustParseAddr("2001:db8::2"), port+1)
		many = append(many, Connection{v4, v4}, Connection{v6, v6})
	}
	const name = "0123456789abcdef"
	c := new(nftables.Conn)
	rules := func() (n int, err error) {
		tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
		for _, table := range tables {
			all, rulesErr := c.GetRules(table, &nftables.Chain{Name: "input", Table: table})
			n, err = n+len(all), errors.Join(err, rulesErr)
		}
		return n, err
	}
	var blocked, left int
	var errs [6]error
	proc.OnOwnThread(func() {
		errs[0] = unix.Unshare(unix.CLONE_NEWNET)
		errs[1] = Block(name, many)
		blocked, errs[2] = rules()
		errs[3], errs[4] = Unblock(name), Unblock(name)
		left, errs[5] = rules()
	})
	must(t, errors.Join(errs[:]...))
	if blocked != len(many) || left != 0 {
		t.Errorf("%d rules, want %d; %d are left", blocked, len(many), left)
	}
}
