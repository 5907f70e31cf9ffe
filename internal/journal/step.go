package journal

import "slices"

// Step is a step of a session. A record holds the one that began last.
type Step string

// The steps of a dump, in their order. A suspend has those from lock to release, without children.
const (
	StepNone         Step = "" // nothing has been touched yet
	StepLock         Step = "lock"
	StepStop         Step = "stop"
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
	return r.Kind == KindRestore || !slices.Contains([]Step{StepNone, StepLock, StepStop, StepPark, StepChildren, StepTrace}, r.Step)
}

// LeavesStopped reports whether criu was told to leave the processes stopped, and got that far. Where
// they are held, a decision says what they do in the end.
func (r *Record) LeavesStopped() bool {
	return r.LeaveStopped && r.Hold == nil && (r.Kind == KindRestore || r.Step == StepDumped)
}

// HandedOver reports whether the hook has done its part of a dump. From then on the freezers are as the
// engine left them, or as criu or the engine has set them since.
func (r *Record) HandedOver() bool {
	return r.Step == StepDumping || r.Step == StepTransferring || r.Step == StepDumped
}

// ResumedOutcome returns the outcome of a session whose processes are back.
func (r *Record) ResumedOutcome() Outcome {
	if r.LeaveStopped && r.Hold == nil {
		return OutcomeStopped
	}
	return OutcomeRunning
}
