package netlock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"cucriu/internal/kit/proc"
)

// Locks is what may hold back the connections of a tree.
type Locks struct{ namespaces map[string]*namespace }

// namespace is a network namespace in which processes have connections.
type namespace struct {
	name    string
	inside  *os.File
	sockets []socket
}

// Find finds the connections of a tree. It needs root, and pidfd_getfd (Linux 5.6). Processes that
// have ended have none. What it finds stays known once the processes have ended, until Close.
func Find(processes []*proc.Process) (*Locks, error) {
	l := &Locks{namespaces: make(map[string]*namespace)}
	for _, p := range processes {
		if err := l.add(p); err != nil && !errors.Is(err, proc.ErrGone) {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

func (l *Locks) add(p *proc.Process) error {
	sockets, err := socketsOf(p)
	if err != nil || len(sockets) == 0 {
		return err
	}
	path := filepath.Join("/proc", strconv.Itoa(p.PID), "ns", "net")
	name, err := os.Readlink(path)
	if err == nil && l.namespaces[name] == nil {
		var inside *os.File
		if inside, err = os.Open(path); err == nil {
			l.namespaces[name] = &namespace{name: name, inside: inside}
		}
	}
	if err != nil {
		closeAll(sockets)
		return proc.GoneOr(p.PID, err)
	}
	l.namespaces[name].sockets = append(l.namespaces[name].sockets, sockets...)
	return nil
}

// Close forgets what was found.
func (l *Locks) Close() {
	l.CloseSockets()
	for _, n := range l.namespaces {
		n.inside.Close()
	}
}

// CloseSockets closes the sockets, which otherwise outlive their processes. [Locks.Remove] needs none.
func (l *Locks) CloseSockets() {
	for _, n := range l.namespaces {
		closeAll(n.sockets)
	}
}

// Remove removes criu's rules for the connections. Their sockets stay as they are: those of a
// process that is ended close without a word. Where there are no rules it changes nothing.
func (l *Locks) Remove(ctx context.Context) error {
	var errs []error
	for _, n := range l.namespaces {
		errs = append(errs, n.removeTables(), n.removeChains(ctx))
	}
	return errors.Join(errs...)
}

// Release removes the rules and lets the sockets send and receive again.
func (l *Locks) Release(ctx context.Context) error {
	if err := l.Remove(ctx); err != nil {
		return err
	}
	for _, n := range l.namespaces {
		for _, s := range n.sockets { // this sends a packet, so the rules go first
			if err := s.leaveRepair(); err != nil {
				return fmt.Errorf("connection %v: %w", s.Connection, err)
			}
		}
	}
	return nil
}

// has reports whether a connection of the tree is the one between these two ends.
func (n *namespace) has(c Connection) bool {
	reverse := Connection{c.Remote, c.Local}
	return slices.ContainsFunc(n.sockets, func(s socket) bool { return s.Connection == c || s.Connection == reverse })
}

// whole reports whether the namespace is the tree's own, which criu locks as a whole.
func (n *namespace) whole() bool {
	ours, err := os.Readlink("/proc/thread-self/ns/net")
	return err == nil && ours != n.name
}
