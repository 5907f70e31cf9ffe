package hooks

import "cucriu/criuutil/tcp"

// criu holds the TCP connections of the processes that it dumps. It lets them go on itself only if
// it lets the job run on. So they are still held after criu's -s, as of a migration, and after a
// criu that was killed.

// reconnect lets the TCP connections of the tree go on, which does not run yet. A job that cannot
// have them back comes back without them.
func (h *Hook) reconnect(s *session) {
	err := s.withConnections(func(c *tcp.Connections) error { return c.Resume() })
	if err != nil {
		h.Log.Warn("TCP connections of the job may not go on", "session", s.Name(), "error", err)
	}
}

// killMoved kills the tree, which goes on elsewhere. Nobody at the other ends of its TCP connections
// hears of that.
func (h *Hook) killMoved(s *session) error {
	var killErr error
	err := s.withConnections(func(c *tcp.Connections) error {
		killErr = s.killTree()
		return c.LetPass()
	})
	if err != nil {
		h.Log.Warn("rules of criu for the TCP connections of the job may be left", "session", s.Name(), "error", err)
		killErr = s.killTree()
	}
	return killErr
}

// withConnections calls a function with the connections of the tree that criu holds.
func (s *session) withConnections(do func(*tcp.Connections) error) error {
	processes, err := s.openTree()
	defer func() {
		for _, p := range processes {
			p.Close()
		}
	}()
	if err != nil {
		return err
	}
	held, err := tcp.Held(processes)
	if err != nil {
		return err
	}
	defer held.Close()
	return do(held)
}
