package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cucriu/internal/image"
	"cucriu/internal/proc"
	"cucriu/internal/timeline"
)

// ErrNewer is the error for a record that a newer cucriu has written.
var ErrNewer = errors.New("a newer cucriu has written it")

// recordVersion is the version that this program writes. Records from before there was a version have
// 0. They differ only in fields that are absent.
const recordVersion = 1

// Kind is what a session does: dump, restore or suspend.
type Kind string

// The kinds of session.
const (
	KindDump    Kind = "dump"
	KindRestore Kind = "restore"
	// KindSuspend checkpoints processes where they run, without criu, until they are resumed.
	KindSuspend Kind = "suspend"
)

// Outcome says what became of a session's processes. It is empty while the session is open.
type Outcome string

// The outcomes of a session.
const (
	OutcomeDumped  Outcome = "dumped"  // criu wrote the image and ended the processes
	OutcomeRunning Outcome = "running" // the processes run, or are stopped as they were before
	OutcomeStopped Outcome = "stopped" // GPU state is restored; the processes are left stopped, as criu's -s asked
	OutcomeKilled  Outcome = "killed"  // a restore failed: its processes were killed, and the image is intact
	OutcomeGone    Outcome = "gone"    // the processes ended by themselves, or together with a criu that failed
	OutcomeLeft    Outcome = "left"    // a restore failed: its processes are left stopped for inspection, as configured
	OutcomeMoved   Outcome = "moved"   // the job goes on at another host: its processes here were ended
)

// Record is what is on disk of one dump, restore or suspend. It is written ahead of every step, so that
// the watcher and recover can bring a job to a good end, wherever its hook died. It also carries what
// the later stages of a restore need, when criu's image directory is out of reach.
type Record struct {
	Version      int           `json:"version"`
	Kind         Kind          `json:"kind"`
	BootID       string        `json:"boot_id"` // start times mean nothing after a reboot
	Created      time.Time     `json:"created"`
	CreatedClock time.Duration `json:"created_clock"`      // the same moment, as time since boot; phases count from it
	Criu         proc.Ident    `json:"criu"`               // of KindSuspend: the command that suspends or resumes
	CriuExe      string        `json:"criu_exe,omitempty"` // of a restore: the executable that identifies its half-restored tasks
	Watcher      *proc.Ident   `json:"watcher,omitempty"`
	Client       *proc.Ident   `json:"client,omitempty"` // the program that serves criu over RPC, if there is no action script
	ImageDir     string        `json:"image_dir"`
	CommittedDir string        `json:"publish_as,omitempty"` // where the complete image goes, if not to ImageDir
	Root         *proc.Ident   `json:"root,omitempty"`
	RootParent   *proc.Ident   `json:"root_parent,omitempty"` // of a restore, if the parent is not criu
	Mark         uint64        `json:"mark,omitempty"`        // of a restore: identifies what its criu creates
	Tree         []proc.Ident  `json:"tree,omitempty"`        // the processes that a restore was seen to create
	LeaveStopped bool          `json:"leave_stopped"`         // criu -s
	LeaveRunning bool          `json:"leave_running"`         // criu -R
	LazyPages    bool          `json:"lazy_pages,omitempty"`  // criu --lazy-pages
	RPC          bool          `json:"rpc"`                   // criu was driven over RPC, so its options are not known
	Step         Step          `json:"step"`                  // the step that began last
	BackBegun    bool          `json:"back"`                  // criu has ended, and bringing back what it left alive has begun
	Restored     bool          `json:"restored"`              // no process is checkpointed any more, so none has to be stopped
	Members      []Member      `json:"members"`               // the CUDA processes
	Ancestors    []proc.Ident  `json:"ancestors,omitempty"`   // processes above the members, without those that stood still before
	// Others are the processes without CUDA that a restore holds back until the GPU state is restored.
	Others []proc.Ident `json:"others,omitempty"`
	// Children are the processes of which a dump borrows a thread, to take from them what they
	// inherited of the driver.
	Children []proc.Ident `json:"children,omitempty"`
	// Paused are the freezers that were already frozen when the dump began: the container was paused.
	Paused   []proc.Freezer  `json:"paused,omitempty"`
	Manifest *image.Manifest `json:"manifest,omitempty"`
	Written  *image.Written  `json:"written,omitempty"` // of a dump
	Phases   timeline.Phases `json:"phases"`
	// Hold is set if the processes stay held after criu until somebody decides what becomes of them.
	Hold    *Hold     `json:"hold,omitempty"`
	Outcome Outcome   `json:"outcome"`
	Ended   time.Time `json:"ended,omitzero"` // when the job reached its end state
	Message string    `json:"message"`
	Stuck   bool      `json:"stuck,omitempty"` // the last try to bring it to its end failed; the message says why
}

// Elsewhere reports whether the session is open and belongs to another pid namespace. Such a session is
// left to the programs there.
func (r *Record) Elsewhere() bool { return r.Outcome == "" && r.Criu.Elsewhere() }

// parse refuses what this program cannot have written, because the pids in it are signalled.
func (r *Record) parse(data []byte) error {
	if err := json.Unmarshal(data, r); err != nil {
		return err
	}
	if r.Version < 0 || r.Version > recordVersion {
		return fmt.Errorf("%w: it is of version %d, and this cucriu reads versions 0 to %d", ErrNewer, r.Version, recordVersion)
	}
	for _, member := range r.Members {
		if err := member.Pages.validate(); err != nil {
			return err
		}
	}
	if r.Hold != nil {
		if err := r.Hold.validate(); err != nil {
			return err
		}
	}
	for _, id := range r.idents() {
		if id.PID <= 0 {
			return fmt.Errorf("it names a process with pid %d", id.PID)
		}
	}
	switch {
	case r.Kind == KindRestore && r.Manifest == nil:
		return errors.New("it is of a restore and has no manifest")
	case r.Kind == KindSuspend && len(r.Members) == 0:
		return errors.New("it suspends no process")
	case r.Kind != KindDump && r.Kind != KindRestore && r.Kind != KindSuspend:
		return fmt.Errorf("it is of kind %q", r.Kind)
	case r.Manifest != nil:
		return r.Manifest.Validate()
	}
	return nil
}

// idents returns all the processes that the journal names.
func (r *Record) idents() []*proc.Ident {
	idents := []*proc.Ident{&r.Criu}
	for _, id := range []*proc.Ident{r.Watcher, r.Client, r.Root, r.RootParent} {
		if id != nil {
			idents = append(idents, id)
		}
	}
	if r.Hold != nil {
		idents = append(idents, &r.Hold.Holder)
	}
	for i := range r.Members {
		idents = append(idents, &r.Members[i].Ident)
	}
	for _, others := range [][]proc.Ident{r.Tree, r.Others, r.Children, r.Ancestors} {
		for i := range others {
			idents = append(idents, &others[i])
		}
	}
	return idents
}
