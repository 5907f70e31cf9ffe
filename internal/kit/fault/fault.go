// Package fault has the error that knows its remedy.
package fault

// Explained is an error whose remedy stands apart from what is wrong. Other error types embed it.
type Explained struct {
	meaning, remedy string
	cause           error
}

// New returns an error with its remedy.
func New(meaning, remedy string) *Explained { return &Explained{meaning: meaning, remedy: remedy} }

// Because is New for an error with a cause, which errors.Is and errors.As find.
func Because(cause error, meaning, remedy string) *Explained {
	return &Explained{meaning, remedy, cause}
}

// Error returns the meaning and the remedy.
func (e *Explained) Error() string { return e.meaning + ": " + e.remedy }

// Meaning returns the error without its remedy.
func (e *Explained) Meaning() string { return e.meaning }

// Remedy says what to do about it.
func (e *Explained) Remedy() string { return e.remedy }

// Unwrap returns the cause.
func (e *Explained) Unwrap() error { return e.cause }
