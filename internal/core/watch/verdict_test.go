package watch

import (
	"testing"

	"cucriu/internal/core/journal"
)

// TestAJobIsKilledOnlyBesideItsCompleteImage checks every state in which criu may have
// ended.
func TestAJobIsKilledOnlyBesideItsCompleteImage(t *testing.T) {
	const running, dumped, gone, stopped = journal.OutcomeRunning, journal.OutcomeDumped, journal.OutcomeGone, journal.OutcomeStopped
	type flags struct{ leaveRunning, leaveStopped, rpc, back, rootGone bool }
	for name, test := range map[string]struct {
		step    journal.Step
		flags   flags
		alive   int // of two
		kill    bool
		outcome journal.Outcome
		says    bool // whether the message ends with what the living processes do
	}{
		"failed at the lock":              {step: journal.StepLock, alive: 2, outcome: running, says: true},
		"criu failed":                     {step: journal.StepDumping, alive: 2, outcome: running, says: true},
		"criu failed, one ended":          {step: journal.StepDumping, alive: 1, outcome: running, says: true},
		"criu failed, all ended":          {step: journal.StepDumping, alive: 0, outcome: gone, says: true},
		"killed while it got its name":    {step: journal.StepPublish, alive: 1, outcome: running, says: true},
		"dumped":                          {step: journal.StepDumped, alive: 0, kill: true, outcome: dumped},
		"dumped, cut off in the end":      {step: journal.StepDumped, alive: 1, kill: true, outcome: dumped},
		"dumped, killed before the end":   {step: journal.StepDumped, alive: 2, outcome: running, says: true},
		"dumped, only the root ended":     {step: journal.StepDumped, flags: flags{rootGone: true}, alive: 2, kill: true, outcome: dumped},
		"dumped, -R, the root ended":      {step: journal.StepDumped, flags: flags{rootGone: true, leaveRunning: true}, alive: 2, outcome: running, says: true},
		"criu failed, the root ended":     {step: journal.StepDumping, flags: flags{rootGone: true}, alive: 2, outcome: running, says: true},
		"dumped, -R":                      {step: journal.StepDumped, flags: flags{leaveRunning: true}, alive: 2, outcome: running, says: true},
		"dumped, -R, one ended":           {step: journal.StepDumped, flags: flags{leaveRunning: true}, alive: 1, outcome: running, says: true},
		"dumped, -R, all ended":           {step: journal.StepDumped, flags: flags{leaveRunning: true}, alive: 0, outcome: gone},
		"dumped, -s":                      {step: journal.StepDumped, flags: flags{leaveStopped: true}, alive: 2, outcome: stopped, says: true},
		"failed, -s":                      {step: journal.StepDumping, flags: flags{leaveStopped: true}, alive: 2, outcome: running, says: true},
		"dumped over RPC":                 {step: journal.StepDumped, flags: flags{rpc: true}, alive: 0, outcome: dumped},
		"dumped over RPC, one lives":      {step: journal.StepDumped, flags: flags{rpc: true}, alive: 1, outcome: running, says: true},
		"brought back before, one lives":  {step: journal.StepDumped, flags: flags{back: true}, alive: 1, outcome: running, says: true},
		"brought back before, none lives": {step: journal.StepDumped, flags: flags{back: true}, alive: 0, outcome: gone, says: true},
		"pages sent":                      {step: journal.StepTransferring, alive: 0, kill: true, outcome: gone},
		"pages sent, cut off in the end":  {step: journal.StepTransferring, alive: 1, kill: true, outcome: gone},
		"pages not sent":                  {step: journal.StepTransferring, alive: 2, outcome: running, says: true},
		"pages sent over RPC, one lives":  {step: journal.StepTransferring, flags: flags{rpc: true}, alive: 1, outcome: running, says: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &journal.Record{
				Kind: journal.KindDump, Step: test.step, Members: make([]journal.Member, 2), ImageDir: "/images",
				LeaveRunning: test.flags.leaveRunning, LeaveStopped: test.flags.leaveStopped, RPC: test.flags.rpc, BackBegun: test.flags.back,
			}
			v := dumpVerdict(r, test.alive, test.flags.rootGone)
			if v.kill != test.kill || v.outcome != test.outcome || (v.livingDo != "") != test.says || v.message == "" {
				t.Errorf("%+v, want kill %v, outcome %s", v, test.kill, test.outcome)
			}
		})
	}
}

// TestNobodyIsKilledWithoutAnImage checks every step before the image is complete, whatever
// else the journal says.
func TestNobodyIsKilledWithoutAnImage(t *testing.T) {
	for _, step := range []journal.Step{
		journal.StepNone, journal.StepLock, journal.StepStop, journal.StepPark, journal.StepChildren, journal.StepTrace, journal.StepCheckpoint, journal.StepRelease, journal.StepDevices,
		journal.StepCopy, journal.StepDrop, journal.StepFreeze, journal.StepManifest, journal.StepDumping, journal.StepPublish,
	} {
		for flags := range 32 {
			for alive := range 3 {
				r := &journal.Record{
					Kind: journal.KindDump, Step: step, Members: make([]journal.Member, 2),
					LeaveRunning: flags&1 != 0, LeaveStopped: flags&2 != 0, RPC: flags&4 != 0, BackBegun: flags&8 != 0,
				}
				if dumpVerdict(r, alive, flags&16 != 0).kill {
					t.Errorf("at step %q, flags %05b, %d alive: killed", step, flags, alive)
				}
			}
		}
	}
}
