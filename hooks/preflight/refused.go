package preflight

import "errors"

// Refused reports whether an error says that something was not begun: a check has
// found that it cannot be done, or could not be made, and nothing was touched. Where
// an error holds others, the outermost that has a word on it counts: a refusal in the
// middle of a dump is a failure of that dump.
func Refused(err error) bool {
	var verdict interface{ Refused() bool }
	return errors.As(err, &verdict) && verdict.Refused()
}

// Refused is true: nothing was touched.
func (e *RefusedError) Refused() bool { return true }

// refusal is an error with a word on whether anything was touched before.
type refusal struct {
	error
	untouched bool
}

func (r *refusal) Unwrap() error { return r.error }
func (r *refusal) Refused() bool { return r.untouched }

// AsRefusal is an error that came before anything was touched.
func AsRefusal(err error) error { return withVerdict(err, true) }

// AsFailure is an error that came after something was touched, whatever it holds.
func AsFailure(err error) error { return withVerdict(err, false) }

func withVerdict(err error, untouched bool) error {
	if err == nil {
		return nil
	}
	return &refusal{err, untouched}
}
