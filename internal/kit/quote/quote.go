// Package quote makes text that a job has chosen fit for a terminal and a log: names of files, processes
// and sockets, arguments, what is in an image. It knows nothing else.
package quote

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Name returns a name for a message: quoted if a character in it cannot be printed.
func Name[T ~string](name T) string {
	if quoted := strconv.Quote(string(name)); quoted != `"`+string(name)+`"` {
		return quoted
	}
	return string(name)
}

// mostNames is how many names a message has.
const mostNames = 8

// Names lists names for a message, each as [Name] has it, and says how many more there are.
func Names[T ~string](names []T) string {
	var list []string
	for _, name := range names[:min(len(names), mostNames)] {
		list = append(list, Name(name))
	}
	if more := len(names) - mostNames; more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}

// Line escapes what cannot be printed, line ends too, and leaves the rest as it is.
func Line(text string) string { return escape(text, "") }

// Lines is [Line] for text of several lines, which may be indented.
func Lines(text string) string { return escape(text, "\n\t") }

func escape(text, keep string) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(keep, r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	var escaped strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if char := text[:size]; plain(r) && (r != utf8.RuneError || size > 1) {
			escaped.WriteString(char)
		} else {
			escaped.WriteString(strings.Trim(strconv.Quote(char), `"`))
		}
		text = text[size:]
	}
	return escaped.String()
}

// mostBytes is how much text of another host a message has.
const mostBytes = 4000

// Foreign is [Lines] for text of another host or program, of which it keeps the first 4,000 bytes.
func Foreign(text string) string {
	if len(text) > mostBytes {
		text = text[:mostBytes] + " …"
	}
	return Lines(text)
}
