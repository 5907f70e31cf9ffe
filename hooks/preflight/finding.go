package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/quote"
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
	return fmt.Sprintf("process %d (%s)", f.PID, quote.Line(f.Process))
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
	return quote.Line(text) // there are names in it that the job has chosen
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
	return fs.with(func(f *Finding) {
		if f.Severity == SeverityError && slices.Contains(names, f.Name) && kindOf(f.Name).CanForce {
			f.Severity, f.Forced = SeverityWarning, true
		}
	})
}

// Soften returns the findings, with the errors of these names turned into warnings, because
// nobody can know them for certain.
func (fs Findings) Soften(names ...string) Findings {
	return fs.with(func(f *Finding) {
		if f.Severity == SeverityError && slices.Contains(names, f.Name) {
			f.Severity = SeverityWarning
		}
	})
}

// Harden returns the findings, with those of a name turned into errors with this remedy,
// because the user does not want what is done about them.
func (fs Findings) Harden(name, remedy string) Findings {
	return fs.with(func(f *Finding) {
		if f.Name == name {
			f.Severity, f.Remedy = SeverityError, remedy
		}
	})
}

func (fs Findings) with(change func(*Finding)) Findings {
	changed := slices.Clone(fs)
	for i := range changed {
		change(&changed[i])
	}
	return changed
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

// New makes a finding of a kind. It has the kind's severity, and its remedy if none is given.
func New(name, message, remedy string) Finding {
	kind := kindOf(name)
	return Finding{Name: name, Severity: kind.Severity, Message: message, Remedy: cmp.Or(remedy, kind.Remedy)}
}

// RemedyOf returns the remedy of a kind, for an error that is not a finding.
func RemedyOf(name string) string { return kindOf(name).Remedy }

// Warning makes a finding that is a warning, whatever its kind.
func Warning(name, message, remedy string) Finding {
	f := New(name, message, remedy)
	f.Severity = SeverityWarning
	return f
}

// Fine makes a finding that says that something is in order.
func Fine(name, message string) Finding {
	return Finding{Name: name, Severity: SeverityOK, Message: message}
}

// Found turns an error into a finding. If the error knows what it means and its remedy, as the
// driver's errors do, these are the finding's; otherwise the remedy is that of the kind, unless the system only refuses to read an image here.
func Found(name string, err error) Finding {
	var known interface {
		Meaning() string
		Remedy() string
	}
	if errors.As(err, &known) && known.Meaning() != "" && known.Remedy() != "" {
		return New(name, known.Meaning(), known.Remedy())
	}
	if name == FindingImage {
		return New(name, err.Error(), durable.HostRemedy(err))
	}
	return New(name, err.Error(), "")
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

// Need is an option of criu that a tree needs, and why.
type Need struct {
	Option string // as on criu's command line, such as "--shell-job"
	Why    string
	Risk   string // what may go wrong with it; empty if nothing
}
