package migrate

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/migrate/predict"
)

const (
	probeLeast = 4 << 20  // bytes
	probeMost  = 64 << 20 // on a fast link
	probeLong  = 100 * time.Millisecond
)

// forecast measures the way to the destination and predicts how long the job will stand still.
// It refuses what would take too long.
func (s *treeSource) forecast(ctx context.Context) error {
	rates := predict.DefaultRates()
	err := s.phase("measure", func() (err error) {
		if s.clocks, err = s.remote.compareClocks(ctx); err == nil {
			rates.Bandwidth, rates.RoundTrip, err = s.probe(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	job := predict.Job{HostPages: int64(s.of.HostBytes())}
	for _, p := range s.of.Processes {
		var sum uint64
		for _, size := range p.MemoryBytes {
			sum += size
		}
		if len(p.GPUs) > 0 {
			job.GPU = append(job.GPU, int64(sum))
		}
	}
	prediction, err := predict.Predict(job, rates)
	if err != nil {
		return err
	}
	s.result.RoundTrip = 2 * s.clocks.error
	s.result.Bandwidth, s.result.PrecopyPaysFrom = rates.Bandwidth, prediction.PaysFrom
	s.result.Precopied = s.options.Precopy == PrecopyAlways || s.options.Precopy == PrecopyAuto && s.result.Report.RoomAhead() && prediction.Precopy(s.options.MaxPause)
	s.result.Predicted = prediction.Direct.Sum()
	s.result.Least = s.result.Predicted
	if s.result.Precopied {
		s.result.Predicted = max(prediction.Round.Sum(), prediction.Final.Sum())
		s.result.Least = max(prediction.Round.Sum(), prediction.Least.Sum())
	}
	if s.options.MaxPause > 0 && s.result.Least > s.options.MaxPause {
		return preflight.AsRefusal(fmt.Errorf("the job would stand still for some %v at least, and --max-pause allows %v: the way to %s takes %.1f MB/s",
			s.result.Least.Round(100*time.Millisecond), s.options.MaxPause, s.options.Host, rates.Bandwidth/1e6))
	}
	return nil
}

// probe sends random bytes, for long enough to tell how fast the way is. They go into a round of
// their own, which the destination drops.
func (s *treeSource) probe(ctx context.Context) (bandwidth float64, roundTrip time.Duration, err error) {
	for size := int64(probeLeast); ; size = min(8*size, probeMost) {
		begin := time.Now()
		data, err := s.open(ctx, round{Probe: true})
		if err != nil {
			return 0, 0, err
		}
		roundTrip = time.Since(begin) // a bit more than one: with the first TLS connection
		begin = time.Now()
		err = data.sendNoise(ctx, size)
		took := time.Since(begin)
		data.close()
		if err != nil {
			return 0, 0, err
		}
		if took > probeLong || size == probeMost {
			return float64(size) / took.Seconds(), roundTrip, nil
		}
	}
}

// noise is random bytes without an end.
type noise struct{ block []byte }

func (n noise) ReadAt(data []byte, offset int64) (int, error) {
	for done := 0; done < len(data); {
		done += copy(data[done:], n.block[(int(offset)+done)%len(n.block):])
	}
	return len(data), nil
}

func (t *transfer) sendNoise(ctx context.Context, size int64) error {
	n := noise{make([]byte, 1<<20)}
	rand.Read(n.block)
	streams := int64(t.from.options.streams())
	for i := range streams {
		t.sender.Add(fmt.Sprintf("noise-%d", i), n).Complete(size / streams)
	}
	return t.from.remote.whileConnected(ctx, dataPatience, func(ctx context.Context) error {
		_, err := t.sender.Finish(ctx)
		return err
	})
}
