package stages

import (
	"errors"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// LateError is the failure of a restore whose tree has been ended, in a stage at which criu ignores
// failures. It would tell the engine that drives it of a success, and the engine might remove the
// image.
type LateError struct {
	Err  error
	criu proc.Ident
}

// Error returns the cause.
func (e *LateError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *LateError) Unwrap() error { return e.Err }

// EndCriu kills criu, which has nothing left to do but to report a success. Whoever drives it sees that
// the restore has failed. What is to be in criu's log must be written before.
func (e *LateError) EndCriu() error {
	return session.SignalKnown(unix.SIGKILL, e.criu)
}

// late makes the failure of a stage a [LateError] if it is one. Without an engine, the log of criu and
// cucriu status say what became of the job.
func late(criu *criuutil.Criu, stage Stage, err error) error {
	if err == nil || stage.Action != criuutil.StagePostResume || !criu.RPC {
		return err
	}
	pid, rootErr := stage.root()
	if rootErr != nil {
		return err
	}
	root, openErr := proc.Open(pid)
	if openErr == nil {
		defer root.Close()
	}
	if errors.Is(openErr, proc.ErrGone) || openErr == nil && root.Exiting() {
		return &LateError{Err: err, criu: criu.Ident}
	}
	return err // such as one that is left for inspection
}
