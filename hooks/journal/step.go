package journal

import "slices"

// Step is a step of a session: the one that was begun last.
type Step string

// The steps of a dump, in their order; a suspend has those from lock to release.
const (
	StepNone         Step = "" // nothing has been touched yet
	StepLock         Step = "lock"
	StepStop         Step = "stop"
	StepPark         Step = "park"
	StepTrace        Step = "trace"
	StepCheckpoint   Step = "checkpoint"
	StepRelease      Step = "release"
	StepCopy         Step = "copy"
	StepDrop         Step = "drop"
	StepFreeze       Step = "freeze"
	StepManifest     Step = "manifest"
	StepDumping      Step = "dumping"      // criu is at work
	StepPublish      Step = "publish"      // the image gets its name
	StepTransferring Step = "transferring" // with --lazy-pages: criu waits for the restore that fetches the pages, and ends the processes then
	StepDumped       Step = "dumped"       // the image is complete
)

// The steps of a suspend after the release.
const (
	StepSuspended Step = "suspended" // it waits for its resume: nobody is at work on it, and there is no watcher
	StepResume    Step = "resume"
)

// The steps of a restore are criu's stages.
const (
	StepPreRestore Step = "pre-restore"
	StepPreResume  Step = "pre-resume"
	StepPostResume Step = "post-resume"
)

// Suspended reports whether the session's processes are checkpointed because somebody
// asked for it: only a resume takes it on from there.
func (r *Record) Suspended() bool {
	return r.Kind == KindSuspend && r.Step == StepSuspended && r.Outcome == ""
}

// MayBeCheckpointed reports whether the session has come so far that GPU state may be
// in the processes' memory.
func (r *Record) MayBeCheckpointed() bool {
	if r.Restored {
		return false
	}
	return r.Kind == KindRestore || !slices.Contains([]Step{StepNone, StepLock, StepStop, StepPark, StepTrace}, r.Step)
}

// LeavesStopped reports whether criu was told to leave the processes stopped, and got
// as far as that.
func (r *Record) LeavesStopped() bool {
	return r.LeaveStopped && (r.Kind == KindRestore || r.Step == StepDumped)
}

// HandedOver reports whether the hook has done its part of a dump: the freezers are as
// the engine left them, or as criu or the engine did since.
func (r *Record) HandedOver() bool {
	return r.Step == StepDumping || r.Step == StepTransferring || r.Step == StepDumped
}

// ResumedOutcome is the outcome of a session whose processes are back.
func (r *Record) ResumedOutcome() Outcome {
	if r.LeaveStopped {
		return OutcomeStopped
	}
	return OutcomeRunning
}
