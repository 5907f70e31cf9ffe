package prepare

import (
	"fmt"
	"strings"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
)

// Judgement is what one end of a migration has found.
type Judgement struct {
	Host     string             `json:"host"`
	Findings preflight.Findings `json:"findings"`
	// Copies are the positions in [Job.Files] of those files that the destination asks for.
	// A file that the job writes is sent while the job is paused.
	Copies []int `json:"copies,omitempty"`
	// Makes are the positions in [Job.SocketDirectories] of those that the destination makes.
	Makes []int `json:"makes,omitempty"`
	// RoomAhead says that there is room for the job's memory to be sent ahead.
	RoomAhead bool `json:"room_ahead,omitempty"`
	// LargestArea is [criuimage.LargestArea] of the destination.
	LargestArea uint64 `json:"largest_area,omitempty"`
}

// Err returns a [*preflight.RefusedError] with the errors among the findings; nil if there are
// none.
func (j *Judgement) Err() error { return j.errors().Err() }

// errors are the errors among the findings, each with the host that it is about.
func (j *Judgement) errors() preflight.Findings {
	errs := j.Findings.Of(preflight.SeverityError)
	for i := range errs {
		if j.Host != "" {
			errs[i].Message = "on " + j.Host + ": " + errs[i].Message
		}
	}
	return errs
}

// Judged makes a judgement of findings, with those overridden that the user has named. Names of
// files and processes are in the messages, so they are made printable.
func Judged(hook *hooks.Hook, host string, findings preflight.Findings) *Judgement {
	j := &Judgement{Host: host, Findings: hook.Judge(findings)}
	for i := range j.Findings {
		f := &j.Findings[i]
		f.Process, f.Message, f.Remedy = short(f.Process), short(f.Message), short(f.Remedy)
	}
	return j
}

const maxMessage = 1 << 13 // bytes

// short makes a text one printable line.
func short(text string) string {
	text = proc.Printable(strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "))
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "")
	}
	return text
}

// Validate bounds a judgement about a job that the other host has made. Nothing may be done with one
// that it refuses.
func (j *Judgement) Validate(of *Job) error {
	err := checkCounts(count{"findings", len(j.Findings), maxFindings}, count{"copies", len(j.Copies), len(of.Files)}, count{"directories to make", len(j.Makes), len(of.SocketDirectories)})
	for _, n := range j.Copies {
		if n < 0 || n >= len(of.Files) {
			err = fmt.Errorf("file %d of the job was requested, but it has %d", n, len(of.Files))
		}
	}
	for _, n := range j.Makes {
		if n < 0 || n >= len(of.SocketDirectories) {
			err = fmt.Errorf("directory %d of the job was requested, but it has %d", n, len(of.SocketDirectories))
		}
	}
	return err
}
