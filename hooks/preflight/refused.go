package preflight

import "errors"

// Refused reports whether err says that something was refused before it began: a check found
// that it cannot be done, or the check itself could not be made. Nothing was touched. If err
// wraps other errors, the outermost one with a Refused method decides: a refusal in the middle
// of a dump is a failure of that dump.
func Refused(err error) bool {
	var verdict interface{ Refused() bool }
	return errors.As(err, &verdict) && verdict.Refused()
}

// Refused returns true: nothing was touched.
func (e *RefusedError) Refused() bool { return true }

// refusal is an error together with the verdict whether nothing had been touched before it.
type refusal struct {
	error
	untouched bool
}

func (r *refusal) Unwrap() error { return r.error }
func (r *refusal) Refused() bool { return r.untouched }

// AsRefusal marks an error as one that came before anything was touched.
func AsRefusal(err error) error { return withVerdict(err, true) }

// AsFailure marks an error as one that came after something was touched, whatever it wraps.
func AsFailure(err error) error { return withVerdict(err, false) }

func withVerdict(err error, untouched bool) error {
	if err == nil {
		return nil
	}
	return &refusal{err, untouched}
}
