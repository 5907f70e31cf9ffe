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
	Final  Standstill // and the dump that moves it, if nothing has stayed the same since

	// PaysFrom is the share of GPU memory that has to stay the same between the round and the
	// final dump for pre-copy to pay: the job stands still for less time in all then. If it is 1 or
	// more, pre-copy cannot pay.
	PaysFrom float64
}

// Predict returns how long the job will stand still.
func Predict(job Job, rates Rates) (Prediction, error) {
	if err := job.check(rates); err != nil {
		return Prediction{}, err
	}
	p := Prediction{
		Direct: job.standstill(rates, job.sent()-job.early(rates), Checkpoint, Copy, CriuDump, Send, CriuRestore, FillIn, Restore, Confirm),
		Round:  job.standstill(rates, 0, Checkpoint, Copy, CriuDump, FillIn, Restore),
		Final:  job.standstill(rates, job.sent(), Checkpoint, Copy, CriuDump, Send, CriuRestore, FillIn, Restore, Confirm),
	}
	p.PaysFrom = 1
	if more, all := p.Round.Sum()+p.Final.Sum()-p.Direct.Sum(), take(0, job.ratio()*job.gpu(), rates.Bandwidth); all > 0 {
		p.PaysFrom = more.Seconds() / all.Seconds()
	}
	return p, nil
}

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
