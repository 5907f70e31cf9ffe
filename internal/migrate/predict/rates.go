package predict

import "time"

// Rates are how fast things go, in bytes per second, and what they take however little there is.
type Rates struct {
	Bandwidth float64       // to the destination, over all connections; it has no default
	RoundTrip time.Duration // to the destination and back

	Checkpoint float64 // the driver, for one process
	Restore    float64
	MakeReady  float64 // the host, for the staging memory of all processes
	CopyOut    float64 // for one process
	CopyOutAll float64 // for all of them
	FillIn     float64 // for all of them
	CriuDump   float64 // criu, one process after the other
	CriuLoad   float64
	Compare    float64 // GPU memory with that of an earlier round
	CompareCPU float64 // ordinary memory

	// What remains of a phase without any bytes, for the first process, and for each further one.
	CheckpointLeast, CheckpointEach time.Duration
	RestoreLeast, RestoreEach       time.Duration
	CriuDumpLeast, CriuLoadLeast    time.Duration

	// Keeps says that the GPUs keep a copy of what is moved, if the job runs on, and find out by themselves what
	// has not changed since.
	Keeps bool
}

// DefaultRates are those measured on hosts with one to four H200s and 16 to 64 cores, driver
// 580.159.04, images in memory. The predictions made with them were between 10 % too short and 21 %
// too long for the jobs that were measured there. A host with an H100 took up to 1.4 times as long.
func DefaultRates() Rates {
	return Rates{
		Checkpoint: 7e9,
		Restore:    8e9,
		MakeReady:  20e9,
		CopyOut:    13e9,
		CopyOutAll: 45e9,
		FillIn:     20e9,
		CriuDump:   2e9,
		CriuLoad:   2.3e9,
		Compare:    20e9,
		CompareCPU: 3e9,

		CheckpointLeast: 400 * time.Millisecond,
		CheckpointEach:  100 * time.Millisecond,
		RestoreLeast:    470 * time.Millisecond,
		RestoreEach:     90 * time.Millisecond,
		CriuDumpLeast:   60 * time.Millisecond,
		CriuLoadLeast:   90 * time.Millisecond,
	}
}

// LibraryRates are those of a job whose GPU memory is moved by the library of cucriu run --dir: measured on hosts with two
// H100s (docs/measurements/2026-11-28-guest-side-by-side-h100x2.md).
func LibraryRates() Rates {
	r := DefaultRates()
	r.Checkpoint, r.CopyOut, r.Restore, r.FillIn, r.Compare = 16e9, 32e9, 35e9, 25e9, 130e9
	r.Keeps = true
	return r
}

// longest is what a phase takes at most, so that the sum of all is still a duration.
const longest = 10 * 365 * 24 * time.Hour

// take returns how long bytes take at a rate, after least.
func take(least time.Duration, bytes, rate float64) time.Duration {
	seconds := min(bytes/rate, longest.Seconds())
	return least + time.Duration(seconds*float64(time.Second))
}
