package jobs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMetricsSayWhatHappened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.prom")
	begun := time.Unix(1_700_000_000, 0)
	m, err := newMetrics(path, "train", &Made{Name: "000003", At: begun})
	if err != nil {
		t.Fatal(err)
	}
	has := func(lines ...string) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains(string(data), "\ncucriu_job_"+line+"\n") {
				t.Errorf("no %q in\n%s", line, data)
			}
		}
	}
	has(`running{job="train"} 0`, `state{job="train",state="begins"} 1`, `last_checkpoint_timestamp_seconds{job="train"} 1.7e+09`, `checkpoints_total{job="train"} 0`)
	for _, e := range []Event{
		{Event: EventResumed},
		{Event: EventFailed},
		{Event: EventCheckpoint, At: begun.Add(time.Hour), Pause: 3 * time.Second, Bytes: 1000, NewBytes: 250},
		{Event: EventCheckpoint, At: begun.Add(2 * time.Hour), Pause: time.Second, Bytes: 1000, NewBytes: 1000},
		{Event: EventPreempted},
	} {
		m.note(e)
	}
	has(
		`last_checkpoint_timestamp_seconds{job="train"} 1.7000072e+09`,
		`last_checkpoint_pause_seconds{job="train"} 1`,
		`last_checkpoint_bytes{job="train"} 1000`,
		`last_checkpoint_new_bytes{job="train"} 1000`,
		`last_checkpoint_unchanged_ratio{job="train"} 0`,
		`checkpoint_pause_seconds_sum{job="train"} 4`,
		`checkpoint_pause_seconds_count{job="train"} 2`,
		`checkpoint_pause_seconds_bucket{job="train",le="1"} 1`,
		`checkpoints_total{job="train"} 2`,
		`failures_total{job="train"} 1`,
		`resumes_total{job="train"} 1`,
		`preemptions_total{job="train"} 1`,
	)
	m.show(Local{PID: 1, State: StateRunning})
	has(`running{job="train"} 1`, `state{job="train",state="running"} 1`)
	status := 3
	m.show(Local{State: StateEnded, ExitStatus: &status})
	has(`running{job="train"} 0`, `state{job="train",state="ended"} 1`, `exit_status{job="train"} 3`)
	if files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(files) != 1 {
		t.Errorf("files: %v %v", files, err)
	}
}

// TestMetricsThatCannotBeWritten are an error at the start, and not worth the job later.
func TestMetricsThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	if _, err := newMetrics(filepath.Join(dir, "train.prom"), "train", nil); err == nil {
		t.Error("no error without the directory")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m, err := newMetrics(filepath.Join(dir, "train.prom"), "train", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	m.note(Event{Event: EventCheckpoint})
	none, err := newMetrics("", "train", nil)
	if err != nil {
		t.Fatal(err)
	}
	none.note(Event{Event: EventCheckpoint})
	none.show(Local{})
	none.beat()
}
