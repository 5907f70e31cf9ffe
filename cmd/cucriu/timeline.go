package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
)

const (
	defaultColumns = 80
	minBar         = 16 // columns
	mostSpans      = 12 // that are drawn
)

// timelineOf reads the timeline of an image directory, or of a session that is given by its
// name.
func timelineOf(dir, session string) (timeline.Trace, error) {
	if session == "" {
		trace, err := image.ReadTimeline(dir)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s has no %s: it is not an image directory, or no process in it uses CUDA; --session shows the timeline of a session (cucriu status lists their names)", dir, image.TimelineName)
		}
		if err != nil {
			return timeline.Trace{}, preflight.AsRefusal(err)
		}
		return trace, nil
	}
	hook, err := newHook()
	if err != nil {
		return timeline.Trace{}, err
	}
	trace, err := checkpoint.Timeline(hook.Config.RunDir, session)
	if errors.Is(err, os.ErrNotExist) {
		err = preflight.AsRefusal(fmt.Errorf("there is no session %q: cucriu status lists them", session))
	}
	return trace, err
}

// drawTimeline draws a line for each of the longest spans, with a bar in the columns that are left.
func drawTimeline(out io.Writer, trace timeline.Trace) {
	lines := [][4]string{{"SPAN", "PROCESS", "START MS", "TOOK MS"}}
	ofHosts := trace.About["rows"] == "hosts"
	if ofHosts {
		lines[0][1] = "HOST"
	}
	spans, rest := longest(trace.Spans())
	total := int64(1)
	for _, span := range spans {
		name, row := span.Name, trace.RowOf(span)
		if span.Failed() {
			name += " (failed)"
		}
		if !ofHosts {
			row = fmt.Sprintf("%s %d", row, span.PID)
		}
		lines = append(lines, [4]string{name, row, ms(span.Start), ms(span.Duration)})
		total = max(total, span.Start+span.Duration)
	}
	var w [4]int
	for _, l := range lines {
		for i, cell := range l {
			w[i] = max(w[i], utf8.RuneCountInString(cell))
		}
	}
	width := max(minBar, widthOf(defaultColumns)-(w[0]+w[1]+w[2]+w[3]+4*2))
	for i, l := range lines {
		bar := ""
		if i > 0 {
			bar = timelineBar(spans[i-1], total, width)
		}
		row := fmt.Sprintf("%-*s  %-*s  %*s  %*s  %s", w[0], l[0], w[1], l[1], w[2], l[2], w[3], l[3], bar)
		fmt.Fprintln(out, strings.TrimRight(row, " "))
	}
	if len(rest) > 0 {
		var took int64
		for _, span := range rest {
			took = max(took, span.Duration)
		}
		fmt.Fprintf(out, "and %d of at most %s ms each, which --json lists\n", len(rest), ms(took))
	}
}

// longest divides spans into those that failed or took longest, and the rest.
func longest(spans []timeline.Event) (drawn, rest []timeline.Event) {
	if len(spans) <= mostSpans+1 { // a line that counts one is as long as its own
		return spans, nil
	}
	byDuration := slices.SortedFunc(slices.Values(spans), func(a, b timeline.Event) int { return cmp.Compare(b.Duration, a.Duration) })
	for _, span := range spans {
		if span.Failed() || span.Duration >= byDuration[mostSpans-1].Duration {
			drawn = append(drawn, span)
		} else {
			rest = append(rest, span)
		}
	}
	return drawn, rest
}

// timelineBar draws a span's part of the whole time. A span that is too short to be seen is a
// thin line.
func timelineBar(span timeline.Event, total int64, width int) string {
	scale := float64(width) / float64(total)
	from := min(int(float64(span.Start)*scale), width-1)
	length := min(int(float64(span.Start+span.Duration)*scale+0.5), width) - from
	bar := "▏"
	if float64(span.Duration)*scale >= 0.5 {
		bar = strings.Repeat("█", max(1, length))
	}
	return strings.Repeat(" ", from) + bar
}

func ms(micros int64) string { return fmt.Sprintf("%.1f", float64(micros)/1000) }
