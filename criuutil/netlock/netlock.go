package netlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"cucriu/criuutil/proc"
)

// namespace is a network namespace in which processes have connections.
type namespace struct {
	name    string
	pid     int // of one of the processes in it
	sockets []socket
}

// Release lets the connections of a tree go on. It needs root, and pidfd_getfd (Linux 5.6). Where
// nothing was held back it changes nothing, so it may be repeated.
func Release(ctx context.Context, processes []*proc.Process) error {
	namespaces, err := namespacesOf(processes)
	defer closeNamespaces(namespaces)
	if err != nil {
		return err
	}
	for _, n := range namespaces {
		if err := n.removeRules(ctx); err != nil {
			return err
		}
		for _, s := range n.sockets { // this sends a packet, so the rules go first
			if err := s.leaveRepair(); err != nil {
				return fmt.Errorf("connection %v: %w", s.connection, err)
			}
		}
	}
	return nil
}

// Forget removes the rules for the connections of a tree that is about to be ended. The sockets
// stay as they are: they close without a word.
func Forget(ctx context.Context, processes []*proc.Process) error {
	namespaces, err := namespacesOf(processes)
	defer closeNamespaces(namespaces)
	for _, n := range namespaces {
		err = errors.Join(err, n.removeRules(ctx))
	}
	return err
}

// namespacesOf finds the connections of processes. Those that have ended have none.
func namespacesOf(processes []*proc.Process) (map[string]*namespace, error) {
	found := make(map[string]*namespace)
	for _, p := range processes {
		sockets, err := socketsOf(p)
		if errors.Is(err, proc.ErrGone) || err == nil && len(sockets) == 0 {
			continue
		}
		if err != nil {
			return found, err
		}
		name, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.PID), "ns", "net"))
		if err != nil {
			closeAll(sockets)
			return found, err
		}
		if found[name] == nil {
			found[name] = &namespace{name: name, pid: p.PID}
		}
		found[name].sockets = append(found[name].sockets, sockets...)
	}
	return found, nil
}

func closeNamespaces(namespaces map[string]*namespace) {
	for _, n := range namespaces {
		closeAll(n.sockets)
	}
}

// has reports whether a connection of the tree is the one between these two ends.
func (n *namespace) has(c connection) bool {
	for _, s := range n.sockets {
		if s.connection == c || s.connection == (connection{c.remote, c.local}) {
			return true
		}
	}
	return false
}

// whole reports whether the namespace is the tree's own, which criu locks as a whole.
func (n *namespace) whole() bool {
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	return err == nil && ours != n.name
}

func (n *namespace) removeRules(ctx context.Context) error {
	fd, err := os.Open(filepath.Join("/proc", strconv.Itoa(n.pid), "ns", "net"))
	if err != nil {
		return proc.GoneOr(n.pid, err)
	}
	defer fd.Close()
	return errors.Join(n.removeTables(fd), n.removeChains(ctx, fd))
}
