package figures

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"cucriu/criuutil"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

const (
	meterEvery = 50 * time.Millisecond
	// leastMemory is what is left to the machine.
	leastMemory = 1 * gib
	// quiet is the part of the processors that others may use when a measurement begins.
	quiet = 0.15
)

// meter looks at the machine all the time.
type meter struct {
	over  chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex
	samples []sample
}

type sample struct {
	at         time.Time
	busy, idle uint64 // of all processors, in ticks
	available  int64  // bytes of memory
}

// startMeter starts one, which calls short when there is too little memory left.
func startMeter(short func(left int64)) *meter {
	m := &meter{over: make(chan struct{})}
	m.ended.Go(func() {
		for {
			s := look()
			m.mu.Lock()
			m.samples = append(m.samples, s)
			m.mu.Unlock()
			if s.available < leastMemory {
				short(s.available)
			}
			select {
			case <-m.over:
				return
			case <-time.After(meterEvery):
			}
		}
	})
	return m
}

func (m *meter) stop() {
	close(m.over)
	m.ended.Wait()
}

func look() sample {
	s := sample{at: time.Now(), available: 1 << 62}
	data, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(data), "\n")
	var user, nice, system, idle, wait, irq, softirq, steal uint64
	if n, _ := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &wait, &irq, &softirq, &steal); n == 8 {
		s.busy, s.idle = user+nice+system+irq+softirq+steal, idle+wait
	}
	var system2 proc.System
	if available, err := system2.AvailableMemory(); err == nil {
		s.available = int64(available)
	}
	return s
}

// within returns the samples of a span.
func (m *meter) within(s span) []sample {
	m.mu.Lock()
	defer m.mu.Unlock()
	var in []sample
	for _, sample := range m.samples {
		if !sample.at.Before(s.begin) && !sample.at.After(s.end) {
			in = append(in, sample)
		}
	}
	return in
}

// busy returns which part of all processors was in use.
func (m *meter) busy(s span) float64 {
	in := m.within(s)
	if len(in) < 2 {
		return 0
	}
	first, last := in[0], in[len(in)-1]
	busy, idle := last.busy-first.busy, last.idle-first.idle
	if busy+idle == 0 {
		return 0
	}
	return float64(busy) / float64(busy+idle)
}

// least returns the least memory that was available.
func (m *meter) least(s span) int64 {
	least := int64(1 << 62)
	for _, sample := range m.within(s) {
		least = min(least, sample.available)
	}
	return least
}

// available returns the memory that is available now.
func available() int64 { return look().available }

// waitUntilQuiet waits until nobody else uses the machine, and returns which part of the processors
// is in use if that does not come.
func (f *figures) waitUntilQuiet() (loaded string) {
	for deadline := time.Now().Add(f.patience); ; {
		begin := time.Now()
		time.Sleep(time.Second)
		busy := f.meter.busy(span{begin, time.Now()})
		if busy < quiet {
			return ""
		}
		if time.Now().After(deadline) {
			f.patience /= 2 // it is not coming
			return fmt.Sprintf(" (others use %.0f %% of the processors)", 100*busy)
		}
	}
}

// machine describes where the measurements are made.
func (f *figures) machine() {
	var system proc.System
	kernel, err := system.KernelVersion()
	if err != nil {
		f.t.Fatal(err)
	}
	criu, err := criuutil.CriuVersion(f.t.Context(), testenv.Criu(f.t))
	if err != nil {
		f.t.Fatal(err)
	}
	processor, _ := os.ReadFile("/proc/cpuinfo")
	model := "unknown"
	for line := range strings.Lines(string(processor)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	first := func(name string, args ...string) string {
		out, err := f.A.Try(name, args...)
		if err != nil {
			f.t.Fatalf("%s: %v: %s", name, err, out)
		}
		line, _, _ := strings.Cut(out, "\n")
		return strings.Join(strings.Fields(line), " ")
	}
	f.say("- begun: %s, load %s", time.Now().UTC().Format("2006-01-02 15:04 UTC"), strings.Join(strings.Fields(string(load))[:3], " "))
	f.say("- machine: %d × %s, %d MiB of memory available, kernel %s %s", runtime.NumCPU(), model, available()/mib, kernel, runtime.GOARCH)
	if f.bare {
		f.say("- CRIU %s; %s; control over the rig's own remote shell", criu, runtime.Version())
		return
	}
	f.say("- CRIU %s; %s; %s; %s; %s", criu, first("ssh", "-V"), first(f.net+"/iperf3", "--version"), first(f.net+"/rsync", "--version"), runtime.Version())
}
