package journal

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/hooks/config"
	"cucriu/hooks/timeline"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/core/inspect"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// The versions that this program writes. Records from before there was a version have 0. They differ only
// in fields that are absent.
const (
	recordVersion = 1
	gatedVersion  = 2 // of a session with a process that the library in it may hold back
)

var recordKind = records.Kind[Record]{
	Name: "session.json", What: "session record", Version: gatedVersion, Check: (*Record).check,
	Remedy: "look for processes that it left stopped (cucriu status), then remove its directory",
}

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
	OutcomeKilled  Outcome = "killed"  // a restore failed: its processes were killed, and the image is unchanged
	OutcomeGone    Outcome = "gone"    // the processes ended by themselves, or together with a criu that failed
	OutcomeLeft    Outcome = "left"    // a restore failed: its processes are left stopped for inspection, as configured
	OutcomeMoved   Outcome = "moved"   // the job has moved to another host: its processes here were ended
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
	CriuExe      string        `json:"criu_exe,omitempty"` // of a restore: by which its half-restored tasks are suspected, if there is no mark
	Watcher      *proc.Ident   `json:"watcher,omitempty"`
	Client       *proc.Ident   `json:"client,omitempty"` // the program that serves criu over RPC, if there is no action script
	ImageDir     string        `json:"image_dir"`
	PublishedDir string        `json:"publish_as,omitempty"` // where the complete image goes, if not to ImageDir
	Root         *proc.Ident   `json:"root,omitempty"`
	RootParent   *proc.Ident   `json:"root_parent,omitempty"` // of a restore, if the parent is not criu
	Mark         []uint64      `json:"memory,omitempty"`      // of a restore: identifies what its criu creates
	Tree         []proc.Ident  `json:"tree,omitempty"`        // the processes that a restore was seen to create
	LeaveStopped bool          `json:"leave_stopped"`         // criu -s
	LeaveRunning bool          `json:"leave_running"`         // criu -R
	LazyPages    bool          `json:"lazy_pages,omitempty"`  // criu --lazy-pages
	RPC          bool          `json:"rpc"`                   // criu was driven over RPC, so its options are not known
	Step         Step          `json:"step"`                  // the step that began last
	BackBegun    bool          `json:"back"`                  // criu has ended, and bringing back what it left alive has begun
	Restored     bool          `json:"restored"`              // no process is checkpointed any more, so none has to be stopped
	Members      []Member      `json:"members"`               // the CUDA processes
	Ancestors    []proc.Ident  `json:"ancestors,omitempty"`   // processes above the members, without those that were already stopped
	// Others are the processes without CUDA that a dump has stopped, or that a restore holds back until the
	// GPU state is restored.
	Others []proc.Ident `json:"others,omitempty"`
	// Children are the processes of which a dump borrows a thread, to take from them what they
	// inherited of the driver.
	Children []proc.Ident `json:"children,omitempty"`
	// Paused are the freezers that were already frozen when the dump began: the container was paused.
	Paused   []proc.Freezer     `json:"paused,omitempty"`
	Manifest *imagedir.Manifest `json:"manifest,omitempty"`
	// Plan is where each GPU goes that the job saw. Whoever completes the restore or resume follows it. Earlier versions
	// did not record it: then it is made from the GPU map with which the restore was begun, or without Unmapped, which
	// even earlier ones did not record, from the configuration.
	Plan     gpumap.Pairs      `json:"plan,omitempty"`
	Map      []config.Rule     `json:"map,omitempty"`
	Unmapped config.Policy     `json:"unmapped,omitempty"`
	Written  *imagedir.Written `json:"written,omitempty"` // of a dump
	// HostMemory is what a restore needs of the host's memory, and Resident the most that its processes had of it. Once
	// criu is through, it is Resident at that time and what comes later.
	HostMemory inspect.HostNeed `json:"host_memory,omitzero"`
	Resident   uint64           `json:"resident,omitempty"`
	Phases     timeline.Phases  `json:"phases"`
	// KeeperFD is the watcher's descriptor of a socket with what the GPUs keep of the processes, or 0.
	KeeperFD int `json:"keeper_fd,omitempty"`
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

// check refuses what this program cannot have written, because the pids in it are signalled.
func (r *Record) check() error {
	for _, member := range r.Members {
		if err := errors.Join(member.Pages.validate(), member.Base.validate()); err != nil {
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
	case r.KeeperFD < 0:
		return fmt.Errorf("it names descriptor %d of the watcher", r.KeeperFD)
	case r.Kind == KindRestore && r.Manifest == nil:
		return errors.New("it records a restore, but has no manifest")
	case r.Kind == KindSuspend && len(r.Members) == 0:
		return errors.New("it records a suspend of no process")
	case r.Kind != KindDump && r.Kind != KindRestore && r.Kind != KindSuspend:
		return fmt.Errorf("it has the invalid kind %q", r.Kind)
	case r.Manifest != nil:
		return r.Manifest.Validate()
	}
	return nil
}

func (r *Record) idents() []proc.Ident {
	idents := slices.Concat([]proc.Ident{r.Criu}, IdentsOf(r.Members), r.Tree, r.Others, r.Children, r.Ancestors)
	for _, id := range []*proc.Ident{r.Watcher, r.Client, r.Root, r.RootParent} {
		if id != nil {
			idents = append(idents, *id)
		}
	}
	if r.Hold != nil {
		idents = append(idents, r.Hold.Holder)
	}
	return idents
}

// Step is a step of a session. A record holds the one that began last.
type Step string

// The steps of a dump, in their order. A suspend has those from lock to release, without children.
const (
	StepNone         Step = "" // nothing has been touched yet
	StepLock         Step = "lock"
	StepStop         Step = "stop"
	StepMove         Step = "move" // the library in the job moves memory to the host
	StepPark         Step = "park"
	StepChildren     Step = "children" // of a dump: forked children lose the driver's files
	StepTrace        Step = "trace"
	StepCheckpoint   Step = "checkpoint"
	StepRelease      Step = "release"
	StepDevices      Step = "devices" // of a dump: CUDA processes lose devices that are not CUDA's
	StepCopy         Step = "copy"
	StepDrop         Step = "drop"
	StepFreeze       Step = "freeze"
	StepManifest     Step = "manifest"
	StepDumping      Step = "dumping"      // criu is at work
	StepPublish      Step = "publish"      // the image gets its name
	StepTransferring Step = "transferring" // with --lazy-pages: criu waits for the restore to fetch the pages, and then ends the processes
	StepDumped       Step = "dumped"       // the image is complete
)

// The steps of a suspend after the release.
const (
	StepSuspended Step = "suspended" // it waits for its resume; nobody works on it, and it has no watcher
	StepResume    Step = "resume"
)

// The steps of a restore are criu's stages.
const (
	StepPreRestore Step = "pre-restore"
	StepPreResume  Step = "pre-resume"
	StepPostResume Step = "post-resume"
)

// Owners are the programs that take an open session on while they live: a criu calls its hook again, a watcher waits
// for its turn.
func (r *Record) Owners() (owners []proc.Ident) {
	if r.Kind != KindRestore || r.Step != StepPostResume { // after that criu calls nobody, and lives on for as long as the job
		owners = append(owners, r.Criu)
	}
	if r.Watcher != nil {
		owners = append(owners, *r.Watcher)
	}
	if r.Hold.Undecided() {
		owners = append(owners, r.Hold.Holder)
	}
	return owners
}

// Suspended reports whether the session's processes stay checkpointed because the user asked for it.
// Only a resume continues such a session.
func (r *Record) Suspended() bool {
	return r.Kind == KindSuspend && r.Step == StepSuspended && r.Outcome == ""
}

// MayBeCheckpointed reports whether the session has come so far that the processes' memory may hold GPU
// state.
func (r *Record) MayBeCheckpointed() bool {
	if r.Restored {
		return false
	}
	moved := slices.ContainsFunc(r.Members, func(m Member) bool { return m.Moved })
	return r.Kind == KindRestore || moved || !slices.Contains([]Step{StepNone, StepLock, StepStop, StepMove, StepPark, StepChildren, StepTrace}, r.Step)
}

// LeavesStopped reports whether criu was told to leave the processes stopped, and got that far. Where
// they are held, a decision says what they do in the end.
func (r *Record) LeavesStopped() bool {
	return r.LeaveStopped && r.Hold == nil && (r.Kind == KindRestore || r.Step == StepDumped)
}

// Refrozen reports whether the hook of a dump has frozen again what the engine had frozen. From then on
// the freezers are as the engine left them, or as criu or the engine has set them since.
func (r *Record) Refrozen() bool {
	return slices.Contains([]Step{StepManifest, StepDumping, StepPublish, StepTransferring, StepDumped}, r.Step)
}

// ResumedOutcome returns the outcome of a session whose processes are back.
func (r *Record) ResumedOutcome() Outcome {
	if r.LeaveStopped && r.Hold == nil {
		return OutcomeStopped
	}
	return OutcomeRunning
}

// Decision says what is to become of processes that a session holds.
type Decision string

// The decisions.
const (
	Undecided Decision = ""
	// RunHere lets the processes here run.
	RunHere Decision = "go"
	// EndHere ends the processes here: the job runs elsewhere, or not at all.
	EndHere Decision = "end"
	// StayHeld is no decision, and only for [Hold.IfAbandoned]: the processes stay held until
	// somebody decides.
	StayHeld Decision = "wait"
)

// Hold says that a session does not end with its criu. Its processes stay held, a dump's with their GPU
// state in the image, a restore's with it back on the GPU, until the holder decides. The decision is on
// disk before anything is done about it.
type Hold struct {
	ID     string     `json:"id"`     // of what holds the processes: a migration
	Peer   string     `json:"peer"`   // where the other copy is, for messages
	Holder proc.Ident `json:"holder"` // the program that decides
	// IfAbandoned is what happens if the holder ends without a decision.
	IfAbandoned Decision `json:"if_abandoned"`
	Decision    Decision `json:"decision,omitempty"`
	// KeepsConnections says that the job that runs elsewhere has its TCP connections, with its address.
	// No packet reaches those of a dump here before the processes have ended, and those of a restore end
	// without a word.
	KeepsConnections bool `json:"keeps_connections,omitempty"`
	// PeerKnows says that the other side knows the decision. Until then it asks, or has to be told.
	PeerKnows bool `json:"told,omitempty"`
}

// Undecided reports whether there is a hold and no decision yet.
func (h *Hold) Undecided() bool { return h != nil && h.Decision == Undecided }

func (h *Hold) validate() error {
	switch h.IfAbandoned {
	case RunHere, EndHere, StayHeld:
	default:
		return fmt.Errorf("its hold has the invalid default decision %q", h.IfAbandoned)
	}
	switch h.Decision {
	case Undecided, RunHere, EndHere:
		return nil
	}
	return fmt.Errorf("its hold has the invalid decision %q", h.Decision)
}

// Held reports whether the session's processes are held now, and wait for a decision.
func (r *Record) Held() bool {
	if r.Outcome != "" || !r.Hold.Undecided() {
		return false
	}
	if r.Kind == KindRestore {
		return r.Restored
	}
	return r.Step == StepDumped
}
