package netlock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// criuMark is what criu marks its own packets with. Its rules are about all others.
const criuMark = "0xc114"

// removeChains removes criu's rules of iptables for the tree from a network namespace. Where there
// is no iptables, criu has used nftables, or nothing.
func (n *namespace) removeChains(ctx context.Context) error {
	var errs []error
	for _, program := range []string{"iptables", "ip6tables"} {
		path, err := exec.LookPath(program)
		if err != nil {
			continue
		}
		listed, err := runInside(ctx, n.inside, path, "-w", "-t", "filter", "-S")
		if err != nil {
			continue // this host's iptables does not work, so criu's rules cannot be there either
		}
		for _, rule := range n.rulesIn(listed) {
			if _, err := runInside(ctx, n.inside, path, append([]string{"-w", "-t", "filter"}, rule...)...); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// rulesIn finds criu's rules for the tree in what iptables -S prints, and returns the arguments that
// remove them.
func (n *namespace) rulesIn(listed string) (remove [][]string) {
	for line := range strings.Lines(listed) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		ours := false
		switch chain := fields[1]; {
		case fields[0] == "-A" && (chain == "INPUT" || chain == "OUTPUT") && slices.Contains(fields, criuMark):
			held, ok := parseRule(fields)
			ours = ok && n.has(held)
		case line == "-A INPUT -j CRIU\n" || line == "-A OUTPUT -j CRIU\n": // of a whole namespace
			ours = n.whole()
		}
		if ours {
			remove = append(remove, append([]string{"-D"}, fields[1:]...))
		}
	}
	if n.whole() && strings.Contains(listed, "-N CRIU\n") {
		remove = append(remove, []string{"-F", "CRIU"}, []string{"-X", "CRIU"})
	}
	return remove
}

// parseRule reads the connection that a rule is about.
func parseRule(fields []string) (c Connection, ok bool) {
	value := func(flag string) string {
		if i := slices.Index(fields, flag); i >= 0 && i+1 < len(fields) {
			return fields[i+1]
		}
		return ""
	}
	end := func(address, port string) netip.AddrPort {
		prefix, err := netip.ParsePrefix(value(address))
		number, portErr := strconv.ParseUint(value(port), 10, 16)
		if err != nil || portErr != nil || !prefix.IsSingleIP() {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(prefix.Addr(), uint16(number))
	}
	c = Connection{end("-s", "--sport"), end("-d", "--dport")}
	return c, c.Local.IsValid() && c.Remote.IsValid()
}

// runInside runs a program in a network namespace and returns its output.
func runInside(ctx context.Context, inside *os.File, path string, args ...string) (string, error) {
	var out []byte
	var err error
	proc.OnOwnThread(func() {
		if err = unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // the terminal does not stop it
		out, err = cmd.CombinedOutput()
	})
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %.200s", path, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
