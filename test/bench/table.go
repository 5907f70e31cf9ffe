package main

import (
	"fmt"
	"slices"
	"strings"

	"cucriu/hooks/timeline"
)

// rowFormat is the format of the table that is printed during the measurement.
const rowFormat = "%-14s %-9s %9s %9s %10s %9s %9s"

func head() string {
	return fmt.Sprintf(rowFormat, "case", "mode", "dump", "restore", "written", "CPU", "overhead")
}

func row(l load, mode string, r Run) string {
	return fmt.Sprintf(rowFormat, l.title(), mode,
		seconds(r.DumpSeconds), seconds(r.RestoreSeconds), megabytes(r.BytesWritten), seconds(r.CPUSeconds), overhead(mode, r))
}

func seconds(s float64) string { return fmt.Sprintf("%.3f s", s) }

func millis(s float64) string { return fmt.Sprintf("%.1f ms", 1000*s) }

func megabytes(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/float64(mib)) }

// overhead returns how much time cucriu-hook adds in pre-dump to the driver's own work and
// that of the fast lane, according to its phases.
func overhead(mode string, r Run) string {
	if mode == modeSerial {
		return "–"
	}
	rest := r.PreDumpSeconds
	for _, phase := range r.DumpPhases {
		if phase.By == "pre-dump" && slices.Contains(work(), phase.Name) {
			rest -= phase.Seconds
		}
	}
	return millis(rest)
}

// work returns the steps of pre-dump in which the driver or the fast lane moves data.
func work() []string { return []string{"lock", "checkpoint", "copy", "drop"} }

// ratio returns how many times faster than the baseline a value is.
func ratio(baseline, value float64) string {
	if baseline == 0 || value == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f×", baseline/value)
}

// markdown returns the report as Markdown.
func (r *report) markdown() ([]byte, error) {
	var text strings.Builder
	text.WriteString("# Downtime of dump and restore\n\n")
	for _, line := range r.machine {
		fmt.Fprintf(&text, "- %s: %s\n", line[0], line[1])
	}
	for _, line := range r.skipped {
		fmt.Fprintf(&text, "- %s\n", line)
	}
	text.WriteString("\n" + explanation + "\n")
	if r.room.simulated {
		text.WriteString("The GPUs are simulated: their driver copies with this machine's cores, and these numbers say nothing of a GPU's.\n\n")
	}
	if unsteady := r.results.unsteady(); len(unsteady) > 0 {
		fmt.Fprintf(&text, "**Not to be relied on**, something else kept the machine or its disk busy: %s.\n\n", strings.Join(unsteady, "; "))
	}
	text.WriteString("| case | mode | dump | serial ÷ it | restore | serial ÷ it | written | CPU of dump | CPU of restore | hook's overhead |\n")
	text.WriteString("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, result := range r.results {
		serial, _ := r.results.of(result.load, modeSerial)
		fmt.Fprintf(&text, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", result.load.title(), result.Mode,
			seconds(result.DumpSeconds), ratio(serial.DumpSeconds, result.DumpSeconds),
			seconds(result.RestoreSeconds), ratio(serial.RestoreSeconds, result.RestoreSeconds),
			megabytes(result.BytesWritten), seconds(result.DumpCPUSeconds), seconds(result.RestoreCPUSeconds), overhead(result.Mode, result.Run))
	}
	text.WriteString("\nWhere the time goes, by the journal of cucriu-hook:\n\n")
	for _, result := range r.results {
		fmt.Fprintf(&text, "- %s, %s: pre-dump stage %s", result.load.title(), result.Mode, millis(result.PreDumpSeconds))
		if result.Mode != modeSerial {
			fmt.Fprintf(&text, "; dump: %v; restore: %v", noticeable(result.DumpPhases), noticeable(result.RestorePhases))
		}
		text.WriteString("\n")
	}
	return []byte(text.String()), nil
}

// noticeable leaves out phases that took hardly any time.
func noticeable(phases timeline.Phases) timeline.Phases {
	return slices.DeleteFunc(slices.Clone(phases), func(p timeline.Phase) bool { return p.Seconds < 0.0001 })
}

// tolerance is the largest ratio of the longest to the shortest downtime of a case in a
// mode that counts as steady.
const tolerance = 1.5

// unsteady lists the results whose runs differ too much.
func (rs Results) unsteady() []string {
	var lines []string
	for _, r := range rs {
		if least, most := r.spread(); most > tolerance*least {
			lines = append(lines, fmt.Sprintf("the downtime of %s, %s, was between %s and %s", r.load.title(), r.Mode, seconds(least), seconds(most)))
		}
	}
	return lines
}

const explanation = `A case is so many processes of one tree, each with so much GPU memory. Modes: *serial* is plain CRIU and a process of its own for each
driver call, one after the other, as a CUDA plugin makes them; *hook* is cucriu-hook with all pages through CRIU; *fastlane* is cucriu-hook with
GPU content past CRIU; *guest* is that with the library of ` + "`cucriu run --dir`" + ` in the job. Dump is the wall time of ` + "`criu dump`" + `; restore is the time from the start of ` + "`criu restore`" + ` until every process of the job works
again, which then compares all its GPU memory with what it must be. The run with the median downtime counts. CPU is of CRIU, the hook and what they
wait for, not of the hook's watcher. The hook's overhead is the pre-dump stage less lock, checkpoint, copy and drop.

The fast lane waits until its files are on the disk, CRIU does not wait for its own; ` + "`--config 'fast_lane: {sync: false}'`" + ` compares without.
`
