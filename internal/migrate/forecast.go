package migrate

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/drivers"
	"cucriu/internal/migrate/predict"
	"cucriu/internal/migrate/wire"
)

const (
	// probeMost is the most that is sent to measure the way, in bytes: no more than the job has.
	probeMost  = 512 << 20
	probeLeast = 4 // pieces
	probeLong  = 100 * time.Millisecond
)

// forecast measures the way to the destination and predicts how long the job will be paused.
// It refuses what would take too long.
func (s *treeSource) forecast(ctx context.Context) error {
	rates := s.rates()
	err := s.phase("measure", func() (err error) {
		if s.clocks, err = s.remote.compareClocks(ctx); err == nil {
			rates.RoundTrip = 2 * s.clocks.error
			rates.Bandwidth, err = s.probe(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	context := drivers.For(s.of.DriverVersion).ContextBytes // which is not in an image
	job := predict.Job{HostPages: int64(s.of.HostBytes())}
	for _, p := range s.of.Processes {
		var sum uint64
		for _, size := range p.MemoryBytes {
			if size > context { // a simulated driver lists no contexts
				size -= context
			}
			sum += size
		}
		if len(p.GPUs) > 0 {
			job.GPU = append(job.GPU, int64(sum))
		}
	}
	prediction := predict.Predict(job, rates)
	s.result.RoundTrip, s.result.Bandwidth, s.result.PrecopyPaysFrom = rates.RoundTrip, rates.Bandwidth, prediction.PaysFrom
	s.result.Precopied = s.options.Precopy == PrecopyAlways || s.options.Precopy == PrecopyAuto && s.result.Report.RoomAhead() && prediction.Precopy(s.options.MaxPause)
	s.result.Predicted = prediction.Direct.Sum()
	s.result.Least = s.result.Predicted
	if s.result.Precopied {
		s.result.Predicted = max(prediction.Round.Sum(), prediction.Final.Sum())
		s.result.Least = max(prediction.Round.Sum(), prediction.Least.Sum())
	}
	if s.options.MaxPause > 0 && s.result.Least > s.options.MaxPause {
		return preflight.AsRefusal(fmt.Errorf("the job would be paused for at least about %v, but --max-pause allows %v: the bandwidth to %s is %.1f MB/s",
			s.result.Least.Round(100*time.Millisecond), s.options.MaxPause, s.options.Host, rates.Bandwidth/1e6))
	}
	return nil
}

// rates returns how fast the GPU memory of the job is moved: by the library, if every process has it, or by the driver.
func (s *treeSource) rates() predict.Rates {
	for _, p := range s.of.Processes {
		if len(p.GPUs) > 0 && !checkpoint.HasLibrary(p.PID) {
			return predict.DefaultRates()
		}
	}
	return predict.LibraryRates()
}

// probe sends random bytes in steps, for long enough to tell how fast the way is once there are
// connections and their windows are open. They go into a round of their own, which the destination
// drops.
func (s *treeSource) probe(ctx context.Context) (bandwidth float64, err error) {
	data, err := s.open(ctx, round{Probe: true})
	if err != nil {
		return 0, err
	}
	defer data.close()
	n := noise{make([]byte, 1<<20)}
	rand.Read(n.block)
	var files []*wire.File
	for i := range s.options.streams() {
		files = append(files, data.sender.Add(fmt.Sprintf("noise-%d", i), n))
	}
	most := max(probeLeast, int64(min(probeMost, s.of.HostBytes()+s.of.GPUBytes()))/wire.PieceSize)
	err = s.remote.whileConnected(ctx, dataPatience, func(ctx context.Context) error {
		for before, pieces := int64(0), int64(probeLeast); ; before, pieces = pieces, min(4*pieces, most) {
			begin := time.Now()
			for i, f := range files {
				f.Grow((pieces + int64(len(files)-1-i)) / int64(len(files)) * wire.PieceSize)
			}
			if err := data.sender.Await(ctx, pieces*wire.PieceSize); err != nil {
				return err
			}
			took := time.Since(begin)
			bandwidth = float64((pieces-before)*wire.PieceSize) / took.Seconds()
			if 2*pieces > most || took > 10*probeLong || took > probeLong && before > 0 {
				break
			}
		}
		for _, f := range files {
			f.Complete(f.Size())
		}
		_, err := data.sender.Finish(ctx)
		return err
	})
	return bandwidth, err
}

// noise is random bytes without an end.
type noise struct{ block []byte }

func (n noise) ReadAt(data []byte, offset int64) (int, error) {
	for done := 0; done < len(data); {
		done += copy(data[done:], n.block[(int(offset)+done)%len(n.block):])
	}
	return len(data), nil
}
