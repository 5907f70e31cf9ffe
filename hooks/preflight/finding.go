package preflight

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Severity says what a finding means for a dump or a restore.
type Severity string

// The severities of findings.
const (
	SeverityError   Severity = "error"   // the dump or restore is refused
	SeverityWarning Severity = "warning" // it is done, but something is not as it should be
	SeverityOK      Severity = "ok"      // this was found to be in order
)

// Finding is one thing that was found about a machine, a job or an image. Nothing was touched
// to find it.
type Finding struct {
	Name     string   `json:"name"`
	Severity Severity `json:"severity"`
	PID      int      `json:"pid,omitempty"`     // of the process that the finding is about; 0 if none
	Process  string   `json:"process,omitempty"` // that process's name
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy,omitempty"`
	// Forced says that this was an error, and that the user has overridden it.
	Forced bool `json:"forced,omitempty"`
}

// Subject names the process that the finding is about; "" if none.
func (f Finding) Subject() string {
	switch {
	case f.PID == 0:
		return ""
	case f.Process == "":
		return fmt.Sprintf("process %d", f.PID)
	}
	return fmt.Sprintf("process %d (%s)", f.PID, f.Process)
}

// String returns the finding in one line.
func (f Finding) String() string {
	text := f.Name + ":"
	if subject := f.Subject(); subject != "" {
		text += " " + subject + ":"
	}
	text += " " + f.Message
	if f.Remedy != "" {
		text += ": " + f.Remedy
	}
	return text
}

// Findings is a list of findings, in the order in which they were found.
type Findings []Finding

// Of returns the findings of one severity.
func (fs Findings) Of(severity Severity) Findings {
	return slices.DeleteFunc(slices.Clone(fs), func(f Finding) bool { return f.Severity != severity })
}

// Has reports whether there is a finding of this name.
func (fs Findings) Has(name string) bool {
	return slices.ContainsFunc(fs, func(f Finding) bool { return f.Name == name })
}

// Force returns the findings, with those errors that have one of these names and can be
// overridden turned into warnings.
func (fs Findings) Force(names []string) Findings {
	forced := slices.Clone(fs)
	for i, f := range forced {
		if f.Severity == SeverityError && slices.Contains(names, f.Name) && slices.Contains(Forceable(), f.Name) {
			forced[i].Severity, forced[i].Forced = SeverityWarning, true
		}
	}
	return forced
}

// Soften returns the findings, with the errors of these names turned into warnings, because
// nobody can know them for certain.
func (fs Findings) Soften(names ...string) Findings {
	softened := slices.Clone(fs)
	for i, f := range softened {
		if f.Severity == SeverityError && slices.Contains(names, f.Name) {
			softened[i].Severity = SeverityWarning
		}
	}
	return softened
}

// Harden returns the findings, with those of a name turned into errors with this remedy,
// because the user does not want what is done about them.
func (fs Findings) Harden(name, remedy string) Findings {
	hardened := slices.Clone(fs)
	for i := range hardened {
		if hardened[i].Name == name {
			hardened[i].Severity, hardened[i].Remedy = SeverityError, remedy
		}
	}
	return hardened
}

// Err returns a [*RefusedError] with the errors among the findings; nil if there are none.
func (fs Findings) Err() error {
	if errs := fs.Of(SeverityError); len(errs) > 0 {
		return &RefusedError{Findings: errs}
	}
	return nil
}

// RefusedError says that something was refused before it began, because of what was found
// beforehand. Nothing was touched.
type RefusedError struct {
	Findings Findings // all of them errors
}

// Error returns one line for each finding.
func (e *RefusedError) Error() string {
	if len(e.Findings) == 1 {
		return "refused, nothing was touched: " + e.Findings[0].String()
	}
	return fmt.Sprintf("refused for %d reasons, nothing was touched:%s", len(e.Findings), e.Findings.Text())
}

// Text returns a single finding as it is, and several with a line for each.
func (fs Findings) Text() string {
	if len(fs) == 1 {
		return fs[0].String()
	}
	var text strings.Builder
	for _, f := range fs {
		text.WriteString("\n  " + f.String())
	}
	return text.String()
}

// SessionFinding says that an open session of the journal is in the way of a dump.
func SessionFinding(severity Severity, conflict error) Finding {
	f := found(FindingSession, conflict, "see cucriu status")
	f.Severity = severity
	return f
}

// found turns an error into a finding. If the error itself knows what it means and its remedy,
// as the driver's errors do, found uses these instead of the given remedy.
func found(name string, err error, remedy string) Finding {
	var known interface {
		Meaning() string
		Remedy() string
	}
	if errors.As(err, &known) && known.Meaning() != "" && known.Remedy() != "" {
		return refuse(name, known.Meaning(), known.Remedy())
	}
	return refuse(name, err.Error(), remedy)
}

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

// refuse makes a finding that is an error.
func refuse(name, message, remedy string) Finding {
	return Finding{Name: name, Severity: SeverityError, Message: message, Remedy: remedy}
}

// warn makes a finding that is a warning.
func warn(name, message, remedy string) Finding {
	return Finding{Name: name, Severity: SeverityWarning, Message: message, Remedy: remedy}
}

// fine says that something is in order.
func fine(name, message string) Finding {
	return Finding{Name: name, Severity: SeverityOK, Message: message}
}
