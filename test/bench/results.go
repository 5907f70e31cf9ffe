package main

import (
	"cmp"
	"encoding/json"
	"slices"

	"cucriu/hooks/timeline"
)

// Run holds what one dump and the restore after it took.
type Run struct {
	// DumpSeconds is the wall time of criu dump.
	DumpSeconds float64 `json:"dump_seconds"`
	// RestoreSeconds is the time from the start of criu restore until every
	// process of the job was at work again.
	RestoreSeconds float64 `json:"restore_seconds"`
	BytesWritten   int64   `json:"bytes_written"`   // the total size of the image files
	BytesAllocated int64   `json:"bytes_allocated"` // the disk space of the image files
	BytesByCriu    int64   `json:"bytes_by_criu"`   // the part of BytesWritten that is pages written by criu

	// The processor time of criu, of the hook, and of all processes for which they waited.
	// It does not include the watcher.
	CPUSeconds        float64 `json:"cpu_seconds"`
	DumpCPUSeconds    float64 `json:"dump_cpu_seconds"`
	RestoreCPUSeconds float64 `json:"restore_cpu_seconds"`

	PreDumpSeconds float64         `json:"pre_dump_seconds"` // how long criu waited for the action script in pre-dump
	DumpPhases     timeline.Phases `json:"dump_phases,omitempty"`
	RestorePhases  timeline.Phases `json:"restore_phases,omitempty"`
}

// downtime returns how long the job did not work, in seconds.
func (r Run) downtime() float64 { return r.DumpSeconds + r.RestoreSeconds }

// Result is what a case took in a mode: all runs, and the one with the median downtime.
type Result struct {
	Case      string `json:"case"` // as --cases takes it
	Processes int    `json:"processes"`
	Bytes     int64  `json:"bytes"` // GPU memory of all processes
	Mode      string `json:"mode"`
	Run
	Runs []Run `json:"runs"` // in the order in which they were made

	load load
}

// spread returns the shortest and the longest downtime of the runs, in seconds.
func (r Result) spread() (least, most float64) {
	least = r.Runs[0].downtime()
	for _, run := range r.Runs {
		least, most = min(least, run.downtime()), max(most, run.downtime())
	}
	return least, most
}

// Results are in the order in which cases and modes are shown.
type Results []Result

// add adds one more run.
func (rs *Results) add(l load, mode string, run Run) {
	i := slices.IndexFunc(*rs, func(r Result) bool { return r.load == l && r.Mode == mode })
	if i < 0 {
		i = len(*rs)
		*rs = append(*rs, Result{Case: l.String(), Processes: l.processes, Bytes: l.bytes(), Mode: mode, load: l})
	}
	r := &(*rs)[i]
	r.Runs = append(r.Runs, run)
	r.Run = median(r.Runs)
}

// sort sorts the results by cases and modes.
func (rs Results) sort(loads []load) {
	slices.SortStableFunc(rs, func(a, b Result) int {
		return cmp.Or(cmp.Compare(slices.Index(loads, a.load), slices.Index(loads, b.load)),
			cmp.Compare(slices.Index(allModes(), a.Mode), slices.Index(allModes(), b.Mode)))
	})
}

func median(runs []Run) Run {
	sorted := slices.SortedFunc(slices.Values(runs), func(a, b Run) int { return cmp.Compare(a.downtime(), b.downtime()) })
	return sorted[(len(sorted)-1)/2]
}

// of returns the result of a case in a mode.
func (rs Results) of(l load, mode string) (Result, bool) {
	i := slices.IndexFunc(rs, func(r Result) bool { return r.load == l && r.Mode == mode })
	if i < 0 {
		return Result{}, false
	}
	return rs[i], true
}

func (rs Results) json() ([]byte, error) {
	if rs == nil {
		rs = Results{} // an empty list, not null
	}
	data, err := json.MarshalIndent(rs, "", "\t")
	return append(data, '\n'), err
}
