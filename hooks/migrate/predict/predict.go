package predict

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Phase is a part of a standstill.
type Phase string

// The phases, in their order.
const (
	Checkpoint  Phase = "checkpoint"
	Copy        Phase = "copy"
	CriuDump    Phase = "criu dump"
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

	// SendRatio is what goes over the link of a byte, as zeros are left out and the rest may be
	// compressed. 0 counts as 1.
	SendRatio float64

	// Unchanged is the share of what is sent that stays the same between a pre-copy round and the
	// final dump, if UnchangedKnown.
	Unchanged      float64
	UnchangedKnown bool

	// Measured is what phases of this job have taken, in an earlier round, checkpoint or migration.
	// It counts instead of what the rates say.
	Measured map[Phase]time.Duration
}

// Timed is a phase and how long it takes.
type Timed struct {
	Phase    Phase
	Duration time.Duration
}

// Standstill is a time in which the job does not run.
type Standstill []Timed

// Sum returns how long the job stands still.
func (s Standstill) Sum() time.Duration {
	var sum time.Duration
	for _, t := range s {
		sum += t.Duration
	}
	return sum
}

// Prediction is how long a job will stand still.
type Prediction struct {
	Direct Standstill // without pre-copy
	Round  Standstill // with it: the round that leaves the job running
	Final  Standstill // and the dump that moves it

	// WorthPrecopy: the job stands still for less time in all with pre-copy.
	WorthPrecopy bool
	// Why says so with figures.
	Why string
}

// Predict returns how long the job will stand still.
func Predict(job Job, rates Rates) (Prediction, error) {
	if err := job.check(rates); err != nil {
		return Prediction{}, err
	}
	unchanged := 0.0
	if job.UnchangedKnown {
		unchanged = job.Unchanged
	}
	p := Prediction{
		Direct: job.standstill(rates, job.sent(), Checkpoint, Copy, CriuDump, Send, CriuRestore, FillIn, Restore, Confirm),
		Round:  job.standstill(rates, 0, Checkpoint, Copy, CriuDump, FillIn, Restore),
		Final:  job.standstill(rates, job.sent()*(1-unchanged), Checkpoint, Copy, CriuDump, Send, CriuRestore, FillIn, Restore, Confirm),
	}
	saved := p.Direct.Sum() - p.Final.Sum()
	p.WorthPrecopy = saved > p.Round.Sum()
	p.Why = why(job, saved, p.Round.Sum())
	return p, nil
}

// Choose decides between pre-copy and none where no standstill may be longer than most; 0 stands
// for no limit. It takes what makes the job stand still for less time in all, unless only the other
// is within the limit. If neither is, fits is false.
func (p Prediction) Choose(most time.Duration) (precopy, fits bool) {
	direct := most == 0 || p.Direct.Sum() <= most
	twice := most == 0 || max(p.Round.Sum(), p.Final.Sum()) <= most
	if p.WorthPrecopy {
		return twice || !direct, direct || twice
	}
	return twice && !direct, direct || twice
}

func why(job Job, saved, round time.Duration) string {
	switch {
	case !job.UnchangedKnown:
		return "how much of the job's memory stays the same is not known"
	case saved > round:
		return fmt.Sprintf("pre-copy sends %.0f %% beforehand, which saves %v, and stands still for %v more", 100*job.Unchanged, rounded(saved), rounded(round))
	}
	return fmt.Sprintf("pre-copy sends %.0f %% beforehand, which saves only %v, and stands still for %v more", 100*job.Unchanged, rounded(saved), rounded(round))
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// check refuses what would make the prediction a number without a meaning.
func (job Job) check(rates Rates) error {
	if rates.Bandwidth <= 0 {
		return errors.New("the bandwidth to the destination was not measured")
	}
	for _, rate := range []float64{
		rates.Bandwidth, rates.Checkpoint, rates.Restore, rates.MakeReady, rates.CopyOut,
		rates.CopyOutAll, rates.FillIn, rates.CriuDump, rates.CriuLoad,
	} {
		if !(rate > 0) || math.IsInf(rate, 0) {
			return fmt.Errorf("%v bytes per second is not a rate", rate)
		}
	}
	if !(job.Unchanged >= 0 && job.Unchanged <= 1) {
		return fmt.Errorf("an unchanged share of %v is not between 0 and 1", job.Unchanged)
	}
	if !(job.SendRatio >= 0) || math.IsInf(job.SendRatio, 0) {
		return fmt.Errorf("%v is not a ratio of what is sent", job.SendRatio)
	}
	for _, bytes := range append([]int64{job.HostPages}, job.GPU...) {
		if bytes < 0 {
			return fmt.Errorf("%d bytes is not a size", bytes)
		}
	}
	return nil
}
