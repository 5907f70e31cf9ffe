package predict

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	gbit = 1e9 / 8
)

func processes(n int, bytes int64) []int64 { return slices.Repeat([]int64{bytes}, n) }

func rates(bandwidth float64) Rates {
	r := DefaultRates()
	r.Bandwidth = bandwidth
	r.RoundTrip = 200 * time.Microsecond
	return r
}

// sumOf adds up phases of a standstill.
func sumOf(s Standstill, phases ...Phase) time.Duration {
	var sum time.Duration
	for _, one := range s {
		if slices.Contains(phases, one.Phase) {
			sum += one.Duration
		}
	}
	return sum
}

var (
	dump    = []Phase{Checkpoint, Copy, CriuDump}
	restore = []Phase{CriuRestore, FillIn, Restore}
)

// TestDefaultRatesPredictWhatWasMeasured: the least and the most of the runs on H200s with images
// in memory. Sources: 2026-11-21-fast-lane-h200.md, 2026-11-21-house-h200.md and
// 2026-11-22-long-jobs.md in docs/measurements, from which the default rates were taken, too: this
// shows that so few of them describe all of these jobs, not how they do on another machine. A limit
// on the pause rests on them, so a prediction may rather be too long than too short.
func TestDefaultRatesPredictWhatWasMeasured(t *testing.T) {
	const tooShort, tooLong = 0.88, 1.25
	for _, c := range []struct {
		name                 string
		gpu                  []int64
		dump, restore, round [2]float64 // seconds
	}{
		{name: "64 MiB", gpu: processes(1, 64*mib), dump: [2]float64{0.468, 0.468}, restore: [2]float64{0.636, 0.636}},
		{name: "4 x 64 MiB", gpu: processes(4, 64*mib), dump: [2]float64{0.829, 0.829}, restore: [2]float64{0.944, 0.944}},
		{name: "4 GiB", gpu: processes(1, 4*gib), dump: [2]float64{1.292, 1.292}, restore: [2]float64{1.208, 1.208}},
		{name: "2 x 4 GiB", gpu: processes(2, 4*gib), dump: [2]float64{1.576, 1.576}, restore: [2]float64{1.364, 1.364}},
		{name: "16 GiB", gpu: processes(1, 16*gib), dump: [2]float64{3.843, 4.182}, restore: [2]float64{3.118, 3.972}, round: [2]float64{6.52, 7.61}},
		{name: "4 x 4 GiB", gpu: processes(4, 4*gib), dump: [2]float64{1.916, 2.335}, restore: [2]float64{1.525, 2.363}},
		{name: "64 GiB", gpu: processes(1, 64*gib), dump: [2]float64{16.383, 16.383}, restore: [2]float64{14.054, 14.054}},
		{name: "8 x 8 GiB", gpu: processes(8, 8*gib), dump: [2]float64{5.363, 5.363}, restore: [2]float64{5.314, 5.314}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Predict(Job{GPU: c.gpu}, rates(gbit))
			check := func(what string, predicted time.Duration, measured [2]float64) {
				t.Logf("%s: predicted %.3f s, measured %.3f to %.3f s", what, predicted.Seconds(), measured[0], measured[1])
				if predicted.Seconds() < tooShort*measured[0] || predicted.Seconds() > tooLong*measured[1] {
					t.Errorf("%s: predicted %.3f s, measured %.3f to %.3f s", what, predicted.Seconds(), measured[0], measured[1])
				}
			}
			check("dump", sumOf(p.Direct, dump...), c.dump)
			check("restore", sumOf(p.Direct, restore...), c.restore)
			if c.round[0] > 0 {
				check("checkpoint that leaves the job running", p.Round.Sum(), c.round)
			}
		})
	}
}

// TestMigrationsTakeWhatIsPredicted within a quarter: the runs of 2026-11-22-migration.md in
// docs/measurements, on a link that took some 7.5 GB/s. The sizes are those of the images: NVML lists
// 518 MiB more for each context.
func TestMigrationsTakeWhatIsPredicted(t *testing.T) {
	const bandwidth = 7.5e9
	for _, c := range []struct {
		name        string
		gpu, host   int64   // MiB
		least, most float64 // seconds
	}{
		{"64 MiB", 72, 85, 0.97, 1.16},
		{"1 GiB", 1032, 50, 1.21, 1.25},
		{"PyTorch training", 600, 905, 2.17, 3.09},
		{"16 GiB", 16392, 50, 8.08, 9.01},
		{"32 GiB", 32776, 54, 16.16, 16.16},
		{"48 GiB", 49160, 56, 26.25, 26.25},
		{"64 GiB", 65550, 50, 28.20, 31.11},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Predict(Job{GPU: []int64{c.gpu * mib}, HostPages: c.host * mib}, rates(bandwidth)).Direct.Sum().Seconds()
			if t.Logf("predicted %.2f s, measured %.2f to %.2f s", got, c.least, c.most); got < 0.75*c.least || got > 1.25*c.most {
				t.Errorf("predicted %.2f s, measured %.2f to %.2f s", got, c.least, c.most)
			}
		})
	}
}

// TestTheLibraryIsFaster: the runs of 2026-11-28-guest-side-by-side-h100x2.md in docs/measurements.
func TestTheLibraryIsFaster(t *testing.T) {
	r := LibraryRates()
	r.Bandwidth, r.RoundTrip = 8.5e9, 200*time.Microsecond
	for _, c := range []struct {
		gpu                                 int64
		dump, restore, round, direct, least float64 // seconds; 0: not measured
	}{
		{gpu: gib, round: 1.24, direct: 1.32, least: 1.27},
		{gpu: 16 * gib, dump: 2.21, restore: 1.52, round: 2.38, direct: 5.25, least: 2.66},
		{gpu: 64 * gib, dump: 6.89, restore: 4.99, round: 5.72},
	} {
		p := Predict(Job{GPU: processes(1, c.gpu), HostPages: 50 * mib}, r)
		for what, got := range map[string][2]float64{
			"dump":                       {c.dump, sumOf(p.Direct, dump...).Seconds()},
			"restore":                    {c.restore, sumOf(p.Direct, restore...).Seconds()},
			"a round":                    {c.round, p.Round.Sum().Seconds()},
			"migration":                  {c.direct, p.Direct.Sum().Seconds()},
			"migration, nothing changes": {c.least, p.Least.Sum().Seconds()},
		} {
			t.Logf("%d GiB: %s: predicted %.2f s, measured %.2f", c.gpu/gib, what, got[1], got[0])
			if got[0] > 0 && (got[1] < 0.75*got[0] || got[1] > 1.3*got[0]) {
				t.Errorf("%d GiB: %s: predicted %.2f s, measured %.2f", c.gpu/gib, what, got[1], got[0])
			}
		}
	}
}

// TestCriuTakesThePagesOfTheHost: CRIU took 5.7 to 9.1 s to dump a process with 17.75 GB of
// ordinary memory, and 4.9 to 8.1 s to restore it.
func TestCriuTakesThePagesOfTheHost(t *testing.T) {
	p := Predict(Job{HostPages: 17_750_000_000}, rates(gbit))
	for phase, measured := range map[Phase][2]float64{CriuDump: {5.7, 9.1}, CriuRestore: {4.9, 8.1}} {
		if got := sumOf(p.Direct, phase).Seconds(); got < measured[0] || got > measured[1] {
			t.Errorf("%s: predicted %.2f s, measured %v", phase, got, measured)
		}
	}
	if took := sumOf(p.Direct, Checkpoint, Copy, FillIn, Restore); took != 0 {
		t.Errorf("the driver takes %v of a job without GPU memory", took)
	}
}

// TestWherePrecopyPays: with the shares that were measured 2 s apart (docs/measurements,
// 2026-11-22-long-jobs.md), for one process of 16 GiB.
func TestWherePrecopyPays(t *testing.T) {
	for _, c := range []struct {
		name      string
		unchanged float64
		gbits     float64
		pays      bool
	}{
		{"training, all weights", 0.03, 100, false},
		{"training, all weights", 0.03, 10, false},
		{"training, all weights", 0.03, 1, false},
		{"training, 12 of 16 layers frozen", 0.35, 10, false},
		{"training, 12 of 16 layers frozen", 0.35, 1, true},
		{"LoRA", 0.89, 100, false},
		{"LoRA", 0.89, 25, false},
		{"LoRA", 0.89, 10, true},
		{"inference", 0.97, 100, false},
		{"inference", 0.90, 10, true},
		{"nothing is written", 0.999, 100, false},
		{"nothing is written", 0.999, 10, true},
	} {
		t.Run(fmt.Sprintf("%s, %v Gbit/s", c.name, c.gbits), func(t *testing.T) {
			p := Predict(Job{GPU: processes(1, 16*gib)}, rates(c.gbits*gbit))
			t.Logf("from %v", p.PaysFrom)
			if pays := c.unchanged > p.PaysFrom; pays != c.pays {
				t.Errorf("pays: %v; without %v, with %v and %v", pays, p.Direct.Sum(), p.Round.Sum(), p.Final.Sum())
			}
			saved := time.Duration(c.unchanged * 16 * gib / (c.gbits * gbit) * float64(time.Second))
			if less := p.Round.Sum()+p.Final.Sum()-saved < p.Direct.Sum(); less != c.pays {
				t.Errorf("less in all: %v; it is said to pay: %v", less, c.pays)
			}
		})
	}
}

func TestWithoutAnythingToSendPrecopyCannotPay(t *testing.T) {
	if p := Predict(Job{}, rates(gbit)); p.PaysFrom < 1 {
		t.Errorf("it pays from %v", p.PaysFrom)
	}
}

func TestPrecopyIsUsedWhereItLosesLittle(t *testing.T) {
	for _, c := range []struct {
		job   Job
		gbits float64
		limit time.Duration
		want  bool
	}{
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 100},
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 10},
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 1, want: true},
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 10, limit: 30 * time.Second},
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 10, limit: 12 * time.Second, want: true},
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 10, limit: 5 * time.Second},
		{job: Job{GPU: processes(1, 16*gib)}, gbits: 1, limit: 5 * time.Second, want: true},
		{job: Job{HostPages: gib}, gbits: 10},
		{job: Job{HostPages: gib}, gbits: 0.5, want: true},
		{job: Job{HostPages: 64 << 10}, gbits: 1},
		{job: Job{}, gbits: 1},
	} {
		p := Predict(c.job, rates(c.gbits*gbit))
		if got := p.Precopy(c.limit); got != c.want {
			t.Errorf("%+v at %v Gbit/s within %v: %v; without %v, with %v and %v to %v, pays from %v", c.job, c.gbits, c.limit, got,
				p.Direct.Sum(), p.Round.Sum(), p.Least.Sum(), p.Final.Sum(), p.PaysFrom)
		}
	}
}

func TestSendIsWhatGoesOverTheLink(t *testing.T) {
	r := rates(gbit)
	job := Job{GPU: processes(2, gib), HostPages: gib}
	p := Predict(job, r)
	want := r.RoundTrip + time.Duration(3*gib/gbit*float64(time.Second))
	if got := sumOf(p.Final, Send); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	// The GPU state leaves during the dump.
	if got := want - sumOf(p.Direct, Send) - sumOf(p.Direct, Copy, CriuDump); got.Abs() > time.Microsecond {
		t.Errorf("%v more than the dump leaves", got)
	}
}

func TestCriusPagesLeaveAfterTheDump(t *testing.T) {
	r := rates(1000 * gbit) // so fast that the rest has left before
	p := Predict(Job{GPU: processes(1, gib), HostPages: gib}, r)
	want := take(r.RoundTrip, gib, r.Bandwidth)
	if got := sumOf(p.Direct, Send); (got - want).Abs() > time.Microsecond {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestThePhasesAreInTheirOrder(t *testing.T) {
	p := Predict(Job{GPU: processes(1, gib)}, rates(gbit))
	for want, s := range map[string]Standstill{
		"checkpoint copy criu dump send criu restore fill in restore confirm ":         p.Direct,
		"checkpoint copy criu dump fill in restore ":                                   p.Round,
		"checkpoint copy criu dump compare send criu restore fill in restore confirm ": p.Final,
	} {
		var got strings.Builder
		for _, one := range s {
			fmt.Fprintf(&got, "%s ", one.Phase)
		}
		if got.String() != want {
			t.Errorf("%q, want %q", got.String(), want)
		}
	}
}

func TestAVerySlowLinkTakesVeryLong(t *testing.T) {
	p := Predict(Job{GPU: processes(1, 1<<40)}, rates(1e-9))
	if got := p.Direct.Sum(); got < longest {
		t.Errorf("%v", got)
	}
}
