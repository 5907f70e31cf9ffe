package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/rundir"
)

const (
	keepRefusals = 16
	refusalAge   = 7 * 24 * time.Hour
)

var refusalKind = records.Kind[[]Refusal]{Name: "refused.json"} // in the run directory

// Refusal is a dump or a restore that was refused before it had a session. It is kept until the same
// one is begun, or for a week, or until there are too many newer ones.
type Refusal struct {
	Kind     Kind        `json:"kind"`
	First    time.Time   `json:"first"`
	Last     time.Time   `json:"last"`
	Times    int         `json:"times"` // how often it was refused for the same reasons
	CriuPID  int         `json:"criu_pid,omitempty"`
	RootPID  int         `json:"root_pid,omitempty"` // of the tree to dump; 0 of a restore
	Root     *proc.Ident `json:"root,omitempty"`     // nil if there was no such process
	Process  string      `json:"process,omitempty"`  // the root's name
	ImageDir string      `json:"image_dir,omitempty"`
	// Findings are the errors that refused it. If there are none, Message says why.
	Findings preflight.Findings `json:"findings,omitempty"`
	Message  string             `json:"message,omitempty"`
}

// Text says why it was refused, and what to do, in a line for each reason.
func (r Refusal) Text() string {
	if len(r.Findings) == 0 {
		return r.Message
	}
	text := r.Findings[0].String()
	for _, f := range r.Findings[1:] {
		text += "\n" + f.String()
	}
	return text
}

// isOf reports whether the refusal is about the same job, or the same image.
func (r Refusal) isOf(kind Kind, root *proc.Ident, imageDir string) bool {
	switch {
	case r.Kind != kind:
		return false
	case kind == KindRestore:
		return r.ImageDir == imageDir
	}
	return r.Root != nil && root != nil && *r.Root == *root
}

// KeepRefusal adds a refusal to those that are kept. It does nothing unless this program is root's.
func KeepRefusal(runDir string, r Refusal) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if _, err := rundir.MakeSessions(runDir); err != nil {
		return err
	}
	changing := flock.New(filepath.Join(runDir, "lock"))
	if err := changing.Lock(); err != nil {
		return fmt.Errorf("refusals: %w", err)
	}
	defer changing.Close()
	r.Last, r.Times = time.Now().UTC(), 1
	r.First = r.Last
	return changeRefusals(runDir, func(kept []Refusal) []Refusal {
		if at := slices.IndexFunc(kept, func(k Refusal) bool {
			return k.Kind == r.Kind && k.RootPID == r.RootPID && k.ImageDir == r.ImageDir && k.Text() == r.Text()
		}); at >= 0 {
			r.First, r.Times = kept[at].First, kept[at].Times+1
			kept = slices.Delete(kept, at, at+1)
		}
		return append(kept, r)
	})
}

// dropRefusals drops the refusals of what is begun now. The caller holds the lock under which sessions
// are made.
func dropRefusals(runDir string, record *Record) error {
	return changeRefusals(runDir, func(kept []Refusal) []Refusal {
		return slices.DeleteFunc(kept, func(r Refusal) bool { return r.isOf(record.Kind, record.Root, record.ImageDir) })
	})
}

func changeRefusals(runDir string, change func([]Refusal) []Refusal) error {
	before, err := Refusals(runDir)
	if err != nil {
		return err
	}
	after := change(slices.Clone(before))
	if len(before) == 0 && len(after) == 0 {
		return nil
	}
	after = after[max(0, len(after)-keepRefusals):]
	if err := refusalKind.Write(runDir, after); err != nil {
		return fmt.Errorf("refusals: %w", err)
	}
	return nil
}

// Refusals returns the refusals that are kept, the oldest first. A file that cannot be read as such
// holds none: it must keep nobody from dumping.
func Refusals(runDir string) ([]Refusal, error) {
	none := []Refusal{} // not nil: null is no list in JSON
	kept, err := refusalKind.ReadOr(runDir, none)
	if errors.Is(err, records.ErrDamaged) {
		return none, nil
	}
	if err != nil {
		return nil, fmt.Errorf("refusals: %w", err)
	}
	return slices.DeleteFunc(kept, func(r Refusal) bool { return time.Since(r.Last) > refusalAge }), nil
}
