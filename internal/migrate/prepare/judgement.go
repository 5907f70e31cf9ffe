package prepare

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

// Judgement is what one end of a migration has found.
type Judgement struct {
	Version  int                `json:"version"`
	Host     string             `json:"host"`
	Findings preflight.Findings `json:"findings"`
	// Copies are the positions in [Job.Files] of those files that the destination asks for.
	// A file that the job writes is to be sent when the job stands still.
	Copies []int `json:"copies,omitempty"`
	// Makes are the positions in [Job.SocketDirectories] of those that the destination makes.
	Makes []int `json:"makes,omitempty"`
	// RoomAhead says that there is room for the job's memory to be sent ahead.
	RoomAhead bool `json:"room_ahead,omitempty"`
	// LargestArea is [images.LargestArea] of the destination.
	LargestArea uint64 `json:"largest_area,omitempty"`
}

// Err returns a [*preflight.RefusedError] with the errors among the findings; nil if there are
// none.
func (j *Judgement) Err() error { return j.Findings.Err() }

// judged makes a judgement of findings, with those overridden that the user has named. Names of
// files and processes are in the messages, so they are made printable.
func judged(hook *hooks.Hook, host string, findings preflight.Findings) *Judgement {
	j := &Judgement{Version: Version, Host: host, Findings: hook.Judge(findings)}
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

const maxFindings = 1 << 12

var findingName = regexp.MustCompile(`^[a-z][a-z-]{0,63}$`)

// Validate checks a judgement about a job that the other host has made. Nothing may be done with
// one that it refuses.
func (j *Judgement) Validate(of *Job) error {
	if j.Version != Version {
		return fmt.Errorf("the judgement of the other host has version %d, and this cucriu reads version %d: use the same cucriu on both hosts", j.Version, Version)
	}
	c := new(checks)
	c.text("the host", j.Host)
	if c.count("findings", len(j.Findings), maxFindings) {
		for _, f := range j.Findings {
			if !findingName.MatchString(f.Name) {
				c.fail("a finding is called %q", f.Name)
			}
			if !slices.Contains([]preflight.Severity{preflight.SeverityError, preflight.SeverityWarning, preflight.SeverityOK}, f.Severity) {
				c.fail("a finding has the severity %q", f.Severity)
			}
			if f.PID < 0 || f.PID > maxPID {
				c.fail("a finding is about process %d", f.PID)
			}
			c.text("a process", f.Process)
			c.textOf("a message", f.Message, maxMessage)
			c.textOf("a remedy", f.Remedy, maxMessage)
		}
	}
	if c.count("copies", len(j.Copies), len(of.Files)) {
		last := -1
		for _, n := range j.Copies {
			if n <= last || n >= len(of.Files) || !of.copyable(&of.Files[n]) {
				c.fail("file %d of the job is asked for", n)
				break
			}
			last = n
		}
	}
	if c.count("directories to make", len(j.Makes), len(of.SocketDirectories)) {
		for _, n := range j.Makes {
			if n < 0 || n >= len(of.SocketDirectories) {
				c.fail("directory %d of the job is asked for", n)
			}
		}
	}
	return c.err
}
