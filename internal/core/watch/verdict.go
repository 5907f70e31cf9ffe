package watch

import (
	"cucriu/internal/core/journal"
)

// verdict is what is to become of a dump's job once criu has ended.
type verdict struct {
	// kill says that no part of the job may keep running. Otherwise the living processes are restored.
	kill    bool
	outcome journal.Outcome
	message string
	// livingDo says, for the message, what the living processes do then, as in "keeps running". It is empty
	// if the message says all.
	livingDo string
}

// dumpVerdict decides what is to become of a dump's job, wherever criu was cut off. alive is how many
// of its CUDA processes live, and rootGone says that the root of the tree does not: criu ends that first, and
// it may have no CUDA. A complete image and a part of its job must not both remain, so that part
// is killed; but never without a complete image, after a dump that was to leave the job alive, or under
// RPC, where criu's options are not known.
func dumpVerdict(r *journal.Record, alive int, rootGone bool) verdict {
	dumped, sent := r.Step == journal.StepDumped, r.Step == journal.StepTransferring
	// After a complete dump, criu has ended the processes that are gone, unless the job was brought
	// back since: then they ended by themselves.
	ended := (dumped || sent) && !r.BackBegun
	leftAlive := r.LeaveRunning || r.LeaveStopped
	kill := ended && !leftAlive && !r.RPC && (rootGone || alive < len(r.Members))
	switch {
	case alive == 0 && ended && sent:
		return verdict{kill: kill, outcome: journal.OutcomeGone, message: "the processes ended after criu had begun to send their pages: the job is where these have been fetched, if all of them have"}
	case alive == 0 && ended && leftAlive:
		return verdict{kill: kill, outcome: journal.OutcomeGone, message: "criu dumped the processes into " + r.ImageDir + " and left them alive; they have ended since"}
	case alive == 0 && ended:
		return verdict{kill: kill, outcome: journal.OutcomeDumped, message: "criu dumped the processes into " + r.ImageDir + " and ended them"}
	case alive == 0:
		return verdict{outcome: journal.OutcomeGone, message: "the processes ended by themselves or with a dump that failed; ", livingDo: "keeps running"}
	case kill && sent:
		return verdict{kill: true, outcome: journal.OutcomeGone, message: "criu had sent all pages, and was interrupted while it was ending the processes: the job is where these have been fetched"}
	case kill:
		return verdict{kill: true, outcome: journal.OutcomeDumped, message: "criu dumped the processes into " + r.ImageDir + " and was interrupted while it was ending them"}
	}
	v := verdict{outcome: journal.OutcomeRunning, message: "criu did not complete the dump; ", livingDo: "keeps running"}
	switch {
	case sent:
		v.message = "criu did not send all pages of the job, and a restore that has begun to fetch them must not continue; "
	case dumped:
		v.message = "criu dumped the processes into " + r.ImageDir + " and left them alive; "
	}
	if r.LeavesStopped() {
		v.outcome, v.livingDo = journal.OutcomeStopped, "is stopped"
	}
	return v
}
