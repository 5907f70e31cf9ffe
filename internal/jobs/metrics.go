package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics is what Prometheus is told of a job, by a file that its node exporter reads. A nil one
// tells nothing.
type metrics struct {
	path     string
	registry *prometheus.Registry
	mutex    sync.Mutex

	success, lastPause, bytes, newBytes, unchanged, running, supervised prometheus.Gauge

	state, exitStatus                           *prometheus.GaugeVec
	pauses                                      prometheus.Histogram
	checkpoints, failures, resumes, preemptions prometheus.Counter
	restarts                                    prometheus.Counter
}

// newMetrics makes the metrics of a job, which is known by its name. last is its newest
// checkpoint.
func newMetrics(path, job string, last *Made) (*metrics, error) {
	if path == "" {
		return nil, nil
	}
	m := &metrics{path: path, registry: prometheus.NewRegistry()}
	factory := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"job": job}, m.registry))
	gauge := func(name, help string) prometheus.Gauge {
		return factory.NewGauge(prometheus.GaugeOpts{Name: "cucriu_job_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: "cucriu_job_" + name, Help: help})
	}
	m.success = gauge("last_checkpoint_timestamp_seconds", "Unix time at which the newest checkpoint was made; 0 if there is none.")
	m.lastPause = gauge("last_checkpoint_pause_seconds", "How long the job was paused for the last checkpoint.")
	m.bytes = gauge("last_checkpoint_bytes", "Size of the last checkpoint.")
	m.newBytes = gauge("last_checkpoint_new_bytes", "Bytes of the last checkpoint that were newly written; the rest is shared with earlier ones.")
	m.unchanged = gauge("last_checkpoint_unchanged_ratio", "Fraction of the last checkpoint that is shared with earlier ones.")
	m.running = gauge("running", "1 while the job runs on this host, or is paused, under a supervisor.")
	m.supervised = gauge("supervised_timestamp_seconds", "Unix time at which the supervisor wrote this file last: every 5 s while it lives.")
	m.state = factory.NewGaugeVec(prometheus.GaugeOpts{Name: stateMetric, Help: "1 for the state of the job, as cucriu jobs list shows it."}, []string{"state"})
	m.exitStatus = factory.NewGaugeVec(prometheus.GaugeOpts{Name: "cucriu_job_exit_status", Help: "Exit status of a job that has ended by itself."}, nil)
	m.pauses = factory.NewHistogram(prometheus.HistogramOpts{
		Name: "cucriu_job_checkpoint_pause_seconds", Help: "How long the job was paused for each checkpoint.",
		Buckets: prometheus.ExponentialBuckets(0.125, 2, 12), // up to 4 min
	})
	m.checkpoints = counter("checkpoints_total", "Checkpoints made.")
	m.failures = counter("failures_total", "Checkpoints that could not be made, kept or restored.")
	m.resumes = counter("resumes_total", "How many times the job was resumed from a checkpoint.")
	m.preemptions = counter("preemptions_total", "How many times the job was asked to leave this host.")
	m.restarts = counter("restarts_total", "How many times the job was started again after it had ended.")
	m.state.WithLabelValues(string(StateBegins)).Set(1)
	m.supervised.SetToCurrentTime()
	if last != nil {
		m.success.Set(unixSeconds(last.At))
	}
	if err := prometheus.WriteToTextfile(path, m.registry); err != nil {
		return nil, fmt.Errorf("the file for Prometheus, %s, cannot be written: %w", path, err)
	}
	return m, nil
}

// note counts an event, and writes the file.
func (m *metrics) note(e Event) {
	if m == nil {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	switch e.Event {
	case EventCheckpoint:
		m.checkpoints.Inc()
		m.success.Set(unixSeconds(e.At))
		m.lastPause.Set(e.Pause.Seconds())
		m.pauses.Observe(e.Pause.Seconds())
		m.bytes.Set(float64(e.Bytes))
		m.newBytes.Set(float64(e.NewBytes))
		if e.Bytes > 0 {
			m.unchanged.Set(1 - float64(e.NewBytes)/float64(e.Bytes))
		}
	case EventFailed:
		m.failures.Inc()
	case EventResumed:
		m.resumes.Inc()
	case EventPreempted:
		m.preemptions.Inc()
	case EventRestarted:
		m.restarts.Inc()
	}
	m.write()
}

// show says what the job does.
func (m *metrics) show(l Local) {
	if m == nil {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.running.Set(0)
	if l.Runs() {
		m.running.Set(1)
	}
	m.state.Reset()
	m.state.WithLabelValues(string(l.State)).Set(1)
	if l.ExitStatus != nil {
		m.exitStatus.WithLabelValues().Set(float64(*l.ExitStatus))
	}
	m.write()
}

// beat says that the supervisor lives.
func (m *metrics) beat() {
	if m != nil {
		m.mutex.Lock()
		defer m.mutex.Unlock()
		m.write()
	}
}

// write replaces the file at once: a reader finds the old or the new one. A full disk does not
// stop a job.
func (m *metrics) write() {
	m.supervised.SetToCurrentTime()
	_ = prometheus.WriteToTextfile(m.path, m.registry)
}

const stateMetric = "cucriu_job_state"

// refreshMetrics corrects the file of a supervisor that was killed: it could not say so itself.
func (l Local) refreshMetrics(folder string) {
	if l.PID != 0 || l.Metrics == "" {
		return
	}
	lock := flock.New(filepath.Join(folder, claimName)) // the next supervisor writes its own
	if locked, err := lock.TryLock(); err != nil || !locked {
		return
	}
	defer lock.Close()
	l.endMetrics(false)
}

// endMetrics corrects or removes the file of a job that has no supervisor, if it is still this job's.
func (l Local) endMetrics(remove bool) {
	old, err := os.ReadFile(l.Metrics)
	label := `{job="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(l.Name) + `"`
	running := "\ncucriu_job_running" + label + "} "
	if err != nil || !strings.Contains(string(old), running) {
		return
	}
	if remove {
		_ = os.Remove(l.Metrics)
		return
	}
	text := strings.Replace(string(old), running+"1\n", running+"0\n", 1)
	if start := strings.Index(text, "\n"+stateMetric+label); start >= 0 {
		rest := text[start+1:]
		text = text[:start+1] + stateMetric + label + fmt.Sprintf(",state=%q} 1", l.State) + rest[strings.Index(rest, "\n"):]
	}
	if text != string(old) {
		_ = renameio.WriteFile(l.Metrics, []byte(text), 0o644)
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
