package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"cucriu/hooks/image"
	"cucriu/hooks/journal"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
)

const (
	defaultColumns = 80
	minBar         = 16 // columns
	maxLabel       = 16 // columns of a name: as long as the kernel's name of a process
)

// timelineOf reads the timeline of an image directory, or of a session that is given by its
// name.
func timelineOf(dir, session string) (timeline.Trace, error) {
	if session == "" {
		trace, err := image.ReadTimeline(dir)
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s has no %s: it is no image directory, or no process in it uses CUDA; a session's timeline is shown with --session (cucriu status has their names)", dir, image.TimelineName)
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
	sessions, err := journal.List(hook.Config.RunDir)
	if err != nil {
		return timeline.Trace{}, err
	}
	for _, s := range sessions {
		if s.Name() == session {
			return s.Timeline(), nil
		}
	}
	return timeline.Trace{}, preflight.AsRefusal(fmt.Errorf("there is no session %q: cucriu status lists them", session))
}

// drawTimeline draws a line for each span, with a bar in the columns that are left.
func drawTimeline(out io.Writer, trace timeline.Trace) error {
	type line struct{ name, process, start, took string }
	ofHosts := trace.About["rows"] == "hosts"
	lines := []line{{"SPAN", "PROCESS", "START MS", "TOOK MS"}}
	if ofHosts {
		lines[0].process = "HOST"
	}
	spans := trace.Spans()
	total := int64(1)
	for _, span := range spans {
		name := label(span.Name)
		if span.Failed() {
			name += " (failed)"
		}
		row := label(trace.RowOf(span))
		if !ofHosts {
			row = fmt.Sprintf("%s %d", row, span.PID)
		}
		lines = append(lines, line{name, row, ms(span.Start), ms(span.Duration)})
		total = max(total, span.Start+span.Duration)
	}
	var w struct{ name, process, start, took int }
	for _, l := range lines {
		w.name, w.process = max(w.name, utf8.RuneCountInString(l.name)), max(w.process, utf8.RuneCountInString(l.process))
		w.start, w.took = max(w.start, len(l.start)), max(w.took, len(l.took))
	}
	width := max(minBar, widthOf(out, defaultColumns)-(w.name+w.process+w.start+w.took+4*2))
	var text strings.Builder
	for i, l := range lines {
		bar := ""
		if i > 0 {
			bar = timelineBar(spans[i-1], total, width)
		}
		row := fmt.Sprintf("%-*s  %-*s  %*s  %*s  %s", w.name, l.name, w.process, l.process, w.start, l.start, w.took, l.took, bar)
		fmt.Fprintln(&text, strings.TrimRight(row, " "))
	}
	_, err := io.WriteString(out, text.String())
	return err
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

func label(text string) string {
	if runes := []rune(text); len(runes) > maxLabel {
		return string(runes[:maxLabel-1]) + "…"
	}
	return text
}

func ms(micros int64) string { return fmt.Sprintf("%.1f", float64(micros)/1000) }
