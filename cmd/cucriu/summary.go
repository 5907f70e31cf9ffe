package main

import (
	"fmt"
	"strings"
	"time"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/hooks/timeline"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/units"
)

// summary is what a dump or restore reports at its end.
type summary struct {
	Verb            string          `json:"verb"` // dump or restore
	Success         bool            `json:"success"`
	Error           string          `json:"error,omitempty"`
	RootPID         int             `json:"root_pid"`
	ImagesDir       string          `json:"images_dir"`
	ImageBytes      int64           `json:"image_bytes"`
	GPUBytes        uint64          `json:"gpu_bytes"`
	Processes       int             `json:"cuda_processes"`
	GPUsVisible     int             `json:"gpus_visible,omitempty"` // that a restore of the image needs
	GPUsUsed        int             `json:"gpus_used,omitempty"`    // by the job
	Outcome         string          `json:"outcome,omitempty"`
	TotalSeconds    float64         `json:"total_seconds"`
	DowntimeSeconds float64         `json:"downtime_seconds"`
	Phases          timeline.Phases `json:"phases"`
	Options         []string        `json:"options"` // of criu, found and set
	Trial           *image.Trial    `json:"trial,omitempty"`
	Log             string          `json:"log"`

	stopped bool // all CUDA processes were stopped before
}

func newSummary(verb string, r checkpoint.Result, err error) summary {
	s := summary{
		Verb: verb, Success: err == nil, RootPID: r.RootPID, ImagesDir: r.ImagesDir, ImageBytes: r.Bytes,
		Trial: r.Trial, TotalSeconds: r.Total.Seconds(), DowntimeSeconds: r.Downtime.Seconds(), Log: r.Log,
	}
	s.Options = []string{} // not nil: null is no list in JSON
	for _, need := range r.Needs {
		s.Options = append(s.Options, need.Option)
	}
	if err != nil {
		s.Error = err.Error()
	} else if m, err := imagedir.ReadManifest(r.ImagesDir); err == nil && verb == "dump" {
		s.GPUsVisible, s.GPUsUsed = len(m.GPUs()), m.Used()
	}
	if r.Session != nil {
		s.Outcome, s.Phases, s.Processes = string(r.Session.Outcome), r.Session.Phases.Steps(), len(r.Session.Processes)
		s.stopped = s.Processes > 0
		for _, process := range r.Session.Processes {
			s.stopped = s.stopped && process.Stopped
			s.GPUBytes += process.GPUBytes
		}
	}
	return s
}

func (s summary) String() string {
	var text strings.Builder
	what := "no CUDA process"
	if s.Processes > 0 {
		what = fmt.Sprintf("%s, %s of GPU memory", units.Count(s.Processes, "CUDA process"), units.Size(int64(s.GPUBytes)))
	}
	state := ""
	switch {
	case s.Outcome == "running" && s.stopped:
		state = ", left stopped as before"
	case s.Outcome == "stopped":
		state = ", left stopped"
	case s.Outcome == "running":
		state = ", left running"
	case s.Outcome == "gone":
		state = ", it was left alive and has ended since"
	}
	if s.Verb == "restore" {
		if state = ""; s.Outcome == "running" && s.stopped {
			state = fmt.Sprintf(", stopped as at the dump (kill -CONT %d continues it)", s.RootPID)
		}
		fmt.Fprintf(&text, "restored process %d from %s%s: %s\n", s.RootPID, s.ImagesDir, state, what)
	} else {
		fmt.Fprintf(&text, "dumped process %d into %s%s: %s\n", s.RootPID, s.ImagesDir, state, what)
	}
	fmt.Fprintf(&text, "  image %s, total %s, downtime %s\n", units.Size(s.ImageBytes), seconds(s.TotalSeconds), seconds(s.DowntimeSeconds))
	if len(s.Options) > 0 {
		fmt.Fprintf(&text, "  with criu's %s, which this job needs\n", strings.Join(s.Options, " "))
	}
	if s.GPUsVisible > s.GPUsUsed {
		fmt.Fprintf(&text, "  a restore needs %s, and the job uses %d: in cucriu run --dir, it sees only those of CUDA_VISIBLE_DEVICES\n",
			units.Count(s.GPUsVisible, "visible GPU"), s.GPUsUsed)
	}
	if s.Trial != nil {
		fmt.Fprintf(&text, "  trial restore: %v\n", s.Trial)
	}
	return text.String()
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
