package inside

import (
	"log/slog"
	"regexp"
	"strconv"

	"cucriu/internal/kit/proc"
)

// PIDs are the pids of a job's processes outside its sandbox, by those in it. People act outside, where what a message
// says of process 1002 is untrue, and a remedy for it would hit another process.
type PIDs map[int]int

// PIDsBelow returns the pids of a process and those below it, in its pid namespace.
func PIDsBelow(pid int) PIDs {
	tree, _ := proc.Tree(pid) // of one that has just ended, nobody tells anything
	p := make(PIDs)
	for _, pid := range tree {
		if status, err := proc.ReadStatus(pid); err == nil && status.ImagePID() != pid {
			p[status.ImagePID()] = pid
		}
	}
	return p
}

// named is how messages and remedies name processes, and numbers are their pids.
var (
	named   = regexp.MustCompile(`(\bprocess(?:es)? |\bpid |\bPID |\bkill (?:-\w+ )?| -p |/proc/)(\d+(?:(?:, | and | )\d+)*)`)
	numbers = regexp.MustCompile(`\d+`)
)

// outside returns a text with the pids that the processes it names have outside the sandbox.
func (p PIDs) outside(text string) string {
	if len(p) == 0 {
		return text
	}
	return named.ReplaceAllStringFunc(text, func(found string) string {
		parts := named.FindStringSubmatch(found)
		return parts[1] + numbers.ReplaceAllStringFunc(parts[2], func(number string) string {
			if pid, err := strconv.Atoi(number); err == nil && p[pid] != 0 {
				return strconv.Itoa(p[pid])
			}
			return number
		})
	})
}

// record returns a record of the log with such pids.
func (p PIDs) record(r slog.Record) slog.Record {
	if len(p) == 0 {
		return r
	}
	changed := slog.NewRecord(r.Time, r.Level, p.outside(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		switch value := a.Value.Resolve(); {
		case a.Key == "pid" && value.Kind() == slog.KindInt64 && p[int(value.Int64())] != 0:
			a = slog.Int(a.Key, p[int(value.Int64())])
		case value.Kind() == slog.KindString:
			a = slog.String(a.Key, p.outside(value.String()))
		case value.Kind() == slog.KindAny:
			if err, is := value.Any().(error); is {
				a = slog.String(a.Key, p.outside(err.Error()))
			}
		}
		changed.AddAttrs(a)
		return true
	})
	return changed
}
