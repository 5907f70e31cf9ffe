package wire

import "fmt"

// Hello is what each side says of itself first.
type Hello struct {
	Version int    `json:"version"` // of the protocol, the newest that it speaks
	Oldest  int    `json:"oldest"`  // the oldest that it speaks
	Program string `json:"program"` // what it is, for people
}

// Negotiate fails unless both sides speak some version of the protocol.
func Negotiate(ours, theirs Hello) error {
	if theirs.Oldest < 1 || theirs.Version < theirs.Oldest {
		return fmt.Errorf("%.60q on the other host says that it speaks the versions %d to %d of the protocol", theirs.Program, theirs.Oldest, theirs.Version)
	}
	version := min(ours.Version, theirs.Version)
	switch {
	case version < ours.Oldest:
		return fmt.Errorf("%.60q on the other host is too old: it speaks version %d of the protocol, and %.60q here needs %d; install a newer one there",
			theirs.Program, theirs.Version, ours.Program, ours.Oldest)
	case version < theirs.Oldest:
		return fmt.Errorf("%.60q here is too old: it speaks version %d of the protocol, and %.60q on the other host needs %d; install a newer one here",
			ours.Program, ours.Version, theirs.Program, theirs.Oldest)
	}
	return nil
}
