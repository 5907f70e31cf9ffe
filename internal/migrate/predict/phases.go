package predict

import (
	"slices"
	"time"
)

// gpu returns the bytes of GPU memory in all.
func (job Job) gpu() float64 {
	var sum float64
	for _, bytes := range job.GPU {
		sum += float64(bytes)
	}
	return sum
}

// largest returns those of the process with the most.
func (job Job) largest() float64 {
	if len(job.GPU) == 0 {
		return 0
	}
	return float64(slices.Max(job.GPU))
}

// sent returns the bytes that go over the link without pre-copy.
func (job Job) sent() float64 { return job.gpu() + float64(job.HostPages) }

// early returns how much of what is sent has left before criu's dump is over: the GPU state goes
// while it is copied and while criu dumps the rest.
func (job Job) early(rates Rates) float64 {
	meanwhile := job.standstill(rates, 0, Copy, CriuDump).Sum()
	return min(job.gpu(), meanwhile.Seconds()*rates.Bandwidth)
}

// standstill returns the phases with how long each takes, where send bytes go over the link.
func (job Job) standstill(rates Rates, send float64, phases ...Phase) Standstill {
	s := make(Standstill, len(phases))
	for i, phase := range phases {
		s[i] = Timed{phase, job.phase(rates, send, phase)}
	}
	return s
}

func (job Job) phase(rates Rates, send float64, phase Phase) time.Duration {
	switch phase {
	case Send:
		return take(rates.RoundTrip, send, rates.Bandwidth)
	case Confirm:
		return 2 * rates.RoundTrip
	case CriuDump:
		return take(rates.CriuDumpLeast, float64(job.HostPages), rates.CriuDump)
	case Compare:
		return take(0, job.gpu(), rates.Compare) + take(0, float64(job.HostPages), rates.CompareCPU)
	case CriuRestore:
		return take(rates.CriuLoadLeast, float64(job.HostPages), rates.CriuLoad)
	}
	if len(job.GPU) == 0 {
		return 0 // the driver has nothing to do
	}
	others := time.Duration(len(job.GPU) - 1)
	switch phase {
	case Checkpoint:
		// The driver copies the processes side by side. They share the host that makes the memory.
		least := rates.CheckpointLeast + others*rates.CheckpointEach
		return max(take(least, job.largest(), rates.Checkpoint), take(least, job.gpu(), rates.MakeReady))
	case Copy:
		return take(0, job.gpu(), min(float64(len(job.GPU))*rates.CopyOut, rates.CopyOutAll))
	case FillIn:
		return take(0, job.gpu(), rates.FillIn)
	default: // Restore
		return take(rates.RestoreLeast+others*rates.RestoreEach, job.largest(), rates.Restore)
	}
}
