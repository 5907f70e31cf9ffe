package cudackpt

import "fmt"

// State is a CUprocessState: where a CUDA process stands between running and checkpointed, as
// the driver sees it. It says nothing about the process's CPU threads: the driver neither knows
// nor changes their state.
type State uint32

const (
	// StateRunning means that CUDA calls go through.
	StateRunning State = 0
	// StateLocked means that calls that submit work block, and that work in flight has ended.
	StateLocked State = 1
	// StateCheckpointed means that GPU memory is staged in host memory of the process, and that
	// the GPUs are released.
	StateCheckpointed State = 2
	// StateFailed means that a checkpoint or restore failed beyond repair.
	StateFailed State = 3
	// StateCheckpointing means that a checkpoint to custom storage is under way (CUDA 13.4).
	StateCheckpointing State = 4
	// StateRestoring means that a restore from custom storage is under way (CUDA 13.4).
	StateRestoring State = 5
)

// String returns the state in one word. A state that this package does not know prints as
// "state(7)".
func (s State) String() string {
	names := [...]string{"running", "locked", "checkpointed", "failed", "checkpointing", "restoring"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint32(s))
}
