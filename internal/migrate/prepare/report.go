package prepare

import (
	"strings"

	"cucriu/hooks/preflight"
)

// Report is what both ends of a migration have found.
type Report struct {
	Source      *Judgement `json:"source"`
	Destination *Judgement `json:"destination"`
}

// RoomAhead reports whether both ends have room for the job's memory to be sent ahead.
func (r Report) RoomAhead() bool { return r.Source.RoomAhead && r.Destination.RoomAhead }

// Err returns a [*preflight.RefusedError] with the errors of both ends; nil if there are none. Those of the
// destination name it: "this host" is where the command runs.
func (r Report) Err() error {
	var all preflight.Findings
	if r.Source != nil {
		all = r.Source.Findings.Of(preflight.SeverityError)
	}
	if r.Destination != nil {
		all = append(all, r.Destination.errors()...)
	}
	return all.Err()
}

// Row is a line of the table of a report.
type Row struct {
	Where   string // the host
	What    string // the name of the finding, and the process that it is about
	Found   string
	Remedy  string // empty if nothing is to be done
	Verdict string // ok, warning, error; or forced, for an error that the user has overridden
}

// Table returns the report for people to read: the source first, and on each end what is in order
// before what is not.
func (r Report) Table() []Row {
	var rows []Row
	for _, end := range []*Judgement{r.Source, r.Destination} {
		if end == nil {
			continue
		}
		for _, severity := range []preflight.Severity{preflight.SeverityOK, preflight.SeverityWarning, preflight.SeverityError} {
			for _, f := range end.Findings.Of(severity) {
				row := Row{Where: end.Host, What: f.Name, Found: f.Message, Remedy: f.Remedy, Verdict: string(severity)}
				if subject := strings.TrimPrefix(f.Subject(), "process "); subject != "" {
					row.What += " " + subject
				}
				if f.Forced {
					row.Verdict = "forced"
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}
