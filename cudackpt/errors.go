package cudackpt

import (
	"context"
	"errors"
	"fmt"

	"cucriu/internal/kit/fault"
)

// explained has the methods Error, Meaning and Remedy of the errors that it is part of.
type explained = fault.Explained

// ErrInvalidArgument marks the error for an argument that is refused before the driver is
// asked. errors.Is finds it.
var ErrInvalidArgument = errors.New("invalid argument")

// Error is a driver call that failed or that the driver refused. errors.Is finds its Result.
type Error struct {
	Call   string // the driver's name of the call, "cuCheckpointProcessLock"
	PID    int    // the target
	Result Result
	// Gone says that the target was dead after the call had failed. It is looked up only for
	// ResultOperatingSystem and ResultNotInitialized, which otherwise have several causes.
	Gone bool
}

// Error says which call was made on which process, what the driver answered, what that means
// for this call, and what to do.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s of process %d: %v", e.Call, e.PID, e.Result)
	if m := e.meaning(); m.means != "" {
		text += ": " + m.means + ": " + m.remedy
	}
	return text
}

// Meaning returns what the result means for this call; "" if that is not known.
func (e *Error) Meaning() string { return e.meaning().means }

// Remedy returns what to do about it; "" if nothing is known to help.
func (e *Error) Remedy() string { return e.meaning().remedy }

// Unwrap returns the Result.
func (e *Error) Unwrap() error { return e.Result }

// InterruptedError says that a context ended before a driver call did. errors.Is finds
// context.Canceled or context.DeadlineExceeded in it.
type InterruptedError struct {
	Call string // the driver's name of the call
	PID  int    // the target; 0 if the call is about no process
	// Started says that the driver was called. The call cannot be taken back: the operation may
	// still complete in the target, at any time. Later calls to that process wait for it, and
	// so does [Process.Settle]. After Settle, State says what became of the operation.
	Started bool
	// InTheWay is the earlier call that this one waited for: its caller had given it up, but it
	// was still under way. "" if there was none.
	InTheWay string
	Err      error // the context's error, or a cause that wraps it
}

// whyOver returns the cause for which a context is over, if errors.Is finds the context's own error in it, else that.
func whyOver(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, ctx.Err()) {
		return cause
	}
	return ctx.Err()
}

// Error says whether the operation may still complete.
func (e *InterruptedError) Error() string {
	what := e.Call
	if e.PID != 0 {
		what = fmt.Sprintf("%s of process %d", e.Call, e.PID)
	}
	switch {
	case e.Started:
		return fmt.Sprintf("%s: %v: the driver call cannot be interrupted, so the operation may still complete in the target: wait until it settles, and read the state before deciding", what, e.Err)
	case e.InTheWay != "":
		return fmt.Sprintf("%s: not started: %v while an earlier %s was still under way", what, e.Err, e.InTheWay)
	}
	return fmt.Sprintf("%s: not started: %v", what, e.Err)
}

// Unwrap returns the context's error.
func (e *InterruptedError) Unwrap() error { return e.Err }

// StateError says that an operation is not possible in the state in which the process is.
// errors.Is finds ResultIllegalState in it.
type StateError struct {
	Op    string // "toggle", "wait for locked"
	PID   int
	State State  // the state in which the process was found
	Hint  string // what to do
}

// Error names the operation, the process and its state.
func (e *StateError) Error() string {
	return fmt.Sprintf("%s: process %d is %v: %s", e.Op, e.PID, e.State, e.Hint)
}

// Is makes errors.Is(err, ResultIllegalState) true.
func (e *StateError) Is(target error) bool { return target == error(ResultIllegalState) }
