package jobs

import (
	"errors"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
)

// input is what the standard input of a job is. It is that from its first start on.
type input string

const (
	inputNone     input = ""         // /dev/null
	inputTerminal input = "terminal" // a terminal of its own
	// Earlier versions passed their own standard input on to the job, or had it read the file that
	// it was, which criu opens again.
	inputStream input = "stream"
	inputFile   input = "file"
)

// input is what a job that is started by these options has.
func (o Options) input() input {
	if o.Terminal != nil {
		return inputTerminal
	}
	return inputNone
}

// check refuses what a job cannot get, or not any more.
func (i input) check(o Options) error {
	switch {
	case i == inputStream:
		return errors.New("the job reads what an earlier version of cucriu run passes on to it (--stdin), and this version cannot: resume it with the version that started it")
	case o.Terminal != nil && i != inputTerminal:
		return errors.New("the job was started without --tty, and goes on without a terminal: leave out --tty, or start it anew in another --dir")
	}
	return nil
}

// terminalSpec says what terminal a job is to have; nil if it has none.
func terminalSpec(s *core) *sandbox.TerminalSpec {
	if s.record.Input != inputTerminal {
		return nil
	}
	size := unix.Winsize{Row: 24, Col: 80}
	if s.Terminal != nil {
		if now, err := unix.IoctlGetWinsize(int(s.Terminal.Fd()), unix.TIOCGWINSZ); err == nil && now.Row > 0 {
			size = *now
		}
	}
	t := &sandbox.TerminalSpec{Rows: size.Row, Columns: size.Col, Output: s.outputPath()}
	if s.user != nil {
		t.User = &s.user.Credential
	}
	return t
}
