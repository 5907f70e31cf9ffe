package predict

import (
	"slices"
	"time"
)

// Phase is a part of a standstill.
type Phase string

// The phases, in their order.
const (
	Checkpoint  Phase = "checkpoint"
	Copy        Phase = "copy"
	CriuDump    Phase = "criu dump"
	Compare     Phase = "compare"
	Send        Phase = "send"
	CriuRestore Phase = "criu restore"
	FillIn      Phase = "fill in"
	Restore     Phase = "restore"
	Confirm     Phase = "confirm"
)

// Job is what is to be moved.
type Job struct {
	GPU       []int64 // bytes of GPU memory of each CUDA process
	HostPages int64   // bytes of ordinary memory that criu dumps, of all processes
}

// Timed is a phase and how long it takes.
type Timed struct {
	Phase    Phase
	Duration time.Duration
}

// Standstill is a time in which the job does not run.
type Standstill []Timed

// Sum returns how long the job is paused.
func (s Standstill) Sum() time.Duration {
	var sum time.Duration
	for _, t := range s {
		sum += t.Duration
	}
	return sum
}

// Prediction is how long a job will be paused.
type Prediction struct {
	Direct Standstill // without pre-copy
	Round  Standstill // with it: the round that leaves the job running
	Final  Standstill // and the dump that moves it, if nothing has stayed the same since
	Least  Standstill // and if everything has

	// PaysFrom is the share of the job's memory that has to stay the same between the round and the
	// final dump for pre-copy to pay: the job is paused for less time in all then. If it is 1 or
	// more, pre-copy cannot pay.
	PaysFrom float64
}

// Predict returns how long the job will be paused. All rates must be known.
func Predict(job Job, rates Rates) Prediction {
	final := []Phase{Checkpoint, Copy, CriuDump, Compare, Send, CriuRestore, FillIn, Restore, Confirm}
	direct := slices.DeleteFunc(slices.Clone(final), func(phase Phase) bool { return phase == Compare })
	p := Prediction{
		Direct: job.standstill(rates, job.sent()-job.early(rates), direct...),
		Round:  job.standstill(rates, 0, Checkpoint, Copy, CriuDump, FillIn, Restore),
		Final:  job.standstill(rates, job.sent(), final...),
		Least:  job.standstill(rates, 0, final...),
	}
	if rates.Keeps {
		stays := Job{GPU: make([]int64, len(job.GPU)), HostPages: job.HostPages}
		p.Round = slices.Concat(job.standstill(rates, 0, Checkpoint, Copy, CriuDump), stays.standstill(rates, 0, FillIn, Restore))
		p.Least = slices.Concat(stays.standstill(rates, 0, Checkpoint, Copy, CriuDump), job.standstill(rates, 0, final[3:]...))
	}
	p.PaysFrom = 1
	if more, all := p.Round.Sum()+p.Final.Sum()-p.Direct.Sum(), take(0, job.sent(), rates.Bandwidth); all > 0 {
		p.PaysFrom = more.Seconds() / all.Seconds()
	}
	return p
}

// autoPaysFrom is the share from which pre-copy has to pay to be used although nobody knows what
// will change: so it loses a tenth of the time for sending at most, and gains nine.
const autoPaysFrom = 0.1

// Precopy reports whether to use pre-copy if nothing is known of what the job changes: if it pays
// from a small share on, or as the only way that may keep each standstill within limit, if that is
// not 0.
func (p Prediction) Precopy(limit time.Duration) bool {
	if limit > 0 {
		direct, ahead := p.Direct.Sum() <= limit, max(p.Round.Sum(), p.Least.Sum()) <= limit
		if direct != ahead {
			return ahead
		}
	}
	return p.PaysFrom <= autoPaysFrom
}
