// Package jsonlines is how the programs of this module talk to each other, and what they append to
// their records: one JSON object a line. A line that was cut off is told from one that is whole.
package jsonlines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Encode returns a value as a line.
func Encode(v any) ([]byte, error) {
	line, err := json.Marshal(v)
	return append(line, '\n'), err
}

// Write writes a value as a line, in one write.
func Write(w io.Writer, v any) error {
	line, err := Encode(v)
	if err == nil {
		_, err = w.Write(line)
	}
	return err
}

// Reader reads lines of a bounded length.
type Reader struct {
	from *bufio.Reader
	most int
}

// NewReader reads lines of at most so many bytes.
func NewReader(r io.Reader, most int) *Reader { return &Reader{bufio.NewReader(r), most} }

// shown is how much of what is not a line of JSON is shown, in bytes.
const shown = 160

// InvalidError says that what came is not a line of JSON, or is too long.
type InvalidError struct {
	Found   []byte // its beginning
	Foreign bool   // it does not even begin as an object: another program has written it
	Cause   error
}

func (e *InvalidError) Error() string { return fmt.Sprintf("invalid line %+q: %v", e.Found, e.Cause) }

func (e *InvalidError) Unwrap() error { return e.Cause }

// Read reads the next line. The error is [io.EOF] at the end, [io.ErrUnexpectedEOF] if the last line
// was cut off, an [*InvalidError], or one of the stream.
func (r *Reader) Read(v any) error {
	begin, err := r.from.Peek(1)
	if err != nil {
		return err
	}
	if begin[0] != '{' { // what another program says may have no end of line
		begin, _ = r.from.Peek(min(r.from.Buffered(), shown))
		return &InvalidError{bytes.Clone(begin), true, errors.New("an object was expected")}
	}
	line, err := r.line()
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	switch {
	case line == nil:
		return err
	case err != nil:
		return &InvalidError{line[:min(len(line), shown)], false, err}
	}
	return nil
}

// line returns a line, nil if it was cut off.
func (r *Reader) line() (line []byte, err error) {
	for {
		part, err := r.from.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > r.most:
			return line, fmt.Errorf("more than %d bytes", r.most)
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
