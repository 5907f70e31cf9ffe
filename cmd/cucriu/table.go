package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	textColumns = 100 // where there is no terminal
	columnGap   = "  "
	minText     = 30 // columns of a table's last column
)

// table is a table for people. Its last column is text, which is wrapped.
type table struct {
	width int
	lines []tableLine
}

// tableLine is a row, or text that stands below a row.
type tableLine struct {
	cells []string
	below string
}

func newTable(header ...string) *table {
	return &table{width: widthOf(textColumns), lines: []tableLine{{cells: header}}}
}

func (t *table) row(cells ...string) { t.lines = append(t.lines, tableLine{cells: cells}) }

// below adds text below the last row. Every line of the text begins a new line.
func (t *table) below(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		t.lines = append(t.lines, tableLine{below: line})
	}
}

func (t *table) write(out io.Writer) {
	var widths []int // of all columns but the last
	for _, line := range t.lines {
		for i, cell := range line.cells[:max(0, len(line.cells)-1)] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range t.lines {
		if line.cells == nil {
			for _, part := range wrap(line.below, t.width-4) {
				fmt.Fprintln(out, strings.TrimRight("    "+part, " "))
			}
			continue
		}
		row, indent := "", 0
		for i, width := range widths {
			cell := line.cells[i]
			row += cell + strings.Repeat(" ", width-utf8.RuneCountInString(cell)) + columnGap
			indent += width + len(columnGap)
		}
		for _, part := range wrap(line.cells[len(line.cells)-1], max(minText, t.width-indent)) {
			fmt.Fprintln(out, strings.TrimRight(row+part, " "))
			row = strings.Repeat(" ", indent)
		}
	}
}

// wrap breaks text between words into lines of at most width columns. A word that is longer
// than that, such as a path, stays whole.
func wrap(text string, width int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// widthOf returns the width of the terminal. Without a terminal it is what COLUMNS says, as
// for other programs, or a default.
func widthOf(otherwise int) int {
	if size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		return int(size.Col)
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return otherwise
}
