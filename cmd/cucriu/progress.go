package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/units"
	"cucriu/internal/migrate"
)

// progress tells people what a dump or restore does. On a terminal it uses one line that
// changes. Elsewhere it prints a line only when a phase takes long; with -v one for each phase.
type progress struct {
	out     *logging.Writer
	tty     bool
	quiet   bool // only what is said of itself
	verbose bool

	mu      sync.Mutex
	phase   string
	begun   time.Time
	said    time.Time
	measure func() (done, total int64) // bytes; nil if the progress of this phase cannot be measured
	takes   time.Duration              // what this phase is expected to take; 0 if nobody knows
	done    chan struct{}
}

// patience is how long a phase takes before a line is printed where there is no terminal.
const patience = 10 * time.Second

func newProgress(cmd *cobra.Command) *progress {
	_, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), unix.TCGETS)
	quiet, verbose := isSet(cmd, "quiet"), isSet(cmd, "verbose") || cmd.Flags().Changed("verbosity")
	p := &progress{out: logging.Stderr(), tty: err == nil && !quiet && !verbose, quiet: quiet, verbose: verbose, done: make(chan struct{})}
	go p.run()
	return p
}

// phases describes in words the steps that may take long.
var phases = map[string]string{
	checkpoint.StepLock:       "waiting for the GPU to become idle",
	checkpoint.StepMove:       "moving GPU memory to the host",
	checkpoint.StepCheckpoint: "moving GPU memory into the processes",
	checkpoint.StepCopy:       "copying GPU memory into the image",
	checkpoint.StepDumping:    "criu is writing the image",
	checkpoint.StepTrial:      "doing a trial restore of the image",
	checkpoint.StepPublish:    "waiting for the image to be on disk",
	checkpoint.StepPreRestore: "criu is restoring the processes",
	checkpoint.StepCheckImage: "verifying the checksums of the image",
	checkpoint.StepRestoreGPU: "moving GPU memory back to the GPUs",
}

// step is called when a step of the session begins.
func (p *progress) step(s hooks.Step) {
	text, known := phases[s.Name]
	if !known || s.Name == checkpoint.StepMove && p.is(phases[checkpoint.StepRestoreGPU]) { // the way back has a step of that name
		return
	}
	var measure func() (done, total int64)
	if s.Measure != nil {
		measure = s.Measure()
	}
	p.begin(text, measure, 0)
}

func (p *progress) is(phase string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase == phase
}

// begin begins a phase, which can be measured or has a time that it is expected to take, or neither.
func (p *progress) begin(phase string, measure func() (done, total int64), takes time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.phase != phase {
		p.phase, p.begun, p.said, p.takes = phase, time.Now(), time.Now(), takes
		if p.verbose {
			fmt.Fprintf(p.out, "cucriu: %s\n", phase)
		}
	}
	if p.measure = measure; p.tty {
		p.line()
	}
}

// expect begins a phase that is expected to take so long; 0 is not known.
func (p *progress) expect(phase string, takes time.Duration) { p.begin(phase, nil, takes) }

// measured begins a phase that is shown only if it takes long.
func (p *progress) measured(phase string, measure func() (done, total int64)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.begun, p.said, p.measure = phase, time.Now(), time.Now(), measure
}

// migrationPhases describes in words the phases of a migration that are no steps of a session.
var migrationPhases = map[string]string{
	"prepare": "checking both hosts",
	"ahead":   "sending its memory while the job keeps running",
	"compare": "comparing its memory with what was sent ahead",
	"send":    "sending the job",
	"restore": "restoring the job at the destination",

	"first checkpoint": "making a checkpoint while the job keeps running",
	"last checkpoint":  "making a last checkpoint",
	"bring back":       "resuming the job here",
}

// migration is called when a phase of a migration begins.
func (p *progress) migration(m migrate.Progress) {
	text, known := migrationPhases[m.Phase]
	if host, found := strings.CutPrefix(m.Phase, "tell "); found {
		text, known = "notifying "+host+" of the decision", true
	}
	if !known {
		text, known = phases[m.Phase]
	}
	if !known {
		return
	}
	var measure func() (done, total int64)
	if m.Done != nil {
		measure = func() (int64, int64) { return m.Done(), m.Total }
	}
	p.begin(text, measure, 0)
}

// say prints a separate line.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
	}
	fmt.Fprintf(p.out, "cucriu: %s\n", quote.Lines(text))
}

func (p *progress) stop() {
	close(p.done)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = ""
	if p.tty {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
	}
	p.out.Flush() // what follows is the standard output
}

func (p *progress) run() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		if p.phase != "" && !p.quiet && (p.tty || time.Since(p.said) > patience) {
			p.line()
		}
		p.mu.Unlock()
	}
}

// line prints the phase as it stands now.
func (p *progress) line() {
	text := p.phase
	elapsed := time.Since(p.begun)
	if p.measure != nil {
		if done, total := p.measure(); total > 0 && done > 0 {
			text += ": " + howFar(min(done, total), total, elapsed)
		}
	}
	if elapsed < p.takes {
		text += fmt.Sprintf(": %d%%, %v left", 100*elapsed/p.takes, (p.takes - elapsed).Round(time.Second))
	}
	text += fmt.Sprintf(" (%s)", elapsed.Round(time.Second))
	if p.tty {
		text = "\r\x1b[K" + text
	} else {
		text = "cucriu: " + text + "\n"
	}
	_, _ = io.WriteString(p.out, text)
	p.said = time.Now()
}

// howFar says how much is done, how fast, and for how long it will go on at that rate.
func howFar(done, total int64, elapsed time.Duration) string {
	rate := float64(done) / max(elapsed.Seconds(), 0.1)
	text := fmt.Sprintf("%d%% of %s, %s/s", 100*done/total, units.Size(total), units.Size(int64(rate)))
	if left := time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second); left > 0 && elapsed > time.Second {
		text += fmt.Sprintf(", %v left", left)
	}
	return text
}
