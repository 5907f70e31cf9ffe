package jobs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cucriu/hooks/jobs/place"
)

// input is what the standard input of a job is. It is that from its first start on.
type input string

const (
	inputNone     input = ""         // /dev/null
	inputStream   input = "stream"   // ours, which is passed on
	inputFile     input = "file"     // the file that was ours, which the job reads itself
	inputTerminal input = "terminal" // a terminal of its own
)

// input is what a job that is started by these options has.
func (o Options) input() input {
	switch {
	case o.Terminal != nil:
		return inputTerminal
	case o.Stdin == nil:
		return inputNone
	}
	if _, is := plainFile(o.Stdin); is {
		return inputFile
	}
	return inputStream
}

// plainFile returns the path of an open file, if it is a regular file that has one.
func plainFile(f *os.File) (string, bool) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return "", false
	}
	open, err := f.Stat()
	if err != nil || !open.Mode().IsRegular() {
		return "", false
	}
	named, err := os.Stat(path)
	return path, err == nil && os.SameFile(open, named)
}

// checkAsked refuses what a job cannot get any more.
func (i input) checkAsked(o Options) error {
	switch asked := o.input(); {
	case asked == inputTerminal && i != inputTerminal:
		return errors.New("the job was started without --tty, and goes on without a terminal: leave out --tty, or start it anew in another --dir")
	case (asked == inputFile || asked == inputStream) && i != inputFile && i != inputStream:
		return errors.New("the job was started without --stdin, and goes on without: leave out --stdin, or start it anew in another --dir")
	}
	return nil
}

func (s *supervisor) feedDir() string { return filepath.Join(s.Dir, "input") }

// renewInput forgets the input of a job that is started anew.
func (s *supervisor) renewInput() error {
	if s.Stdin == nil {
		return nil
	}
	s.record.Input = s.input()
	return errors.Join(os.RemoveAll(s.feedDir()), s.record.write(s.Dir))
}

// addInput says in the specification of a place what the job's input is. of is what is known of
// the checkpoint from which it goes on.
func (s *supervisor) addInput(spec *place.Spec, of staged) error {
	switch s.record.Input {
	case inputStream:
		spec.Feed = &place.Feed{Dir: s.feedDir(), From: of.Fed}
	case inputFile:
		if spec.Start == nil {
			return nil // criu opens it
		}
		if path, is := plainFile(s.Stdin); is {
			at, err := s.Stdin.Seek(0, io.SeekCurrent)
			if err != nil {
				return fmt.Errorf("standard input: %w", err)
			}
			spec.Start.Input, spec.Start.InputFrom = path, at
		}
	case inputTerminal:
		size := unix.Winsize{Row: 24, Col: 80}
		if s.Terminal != nil {
			if now, err := unix.IoctlGetWinsize(int(s.Terminal.Fd()), unix.TIOCGWINSZ); err == nil && now.Row > 0 {
				size = *now
			}
		}
		spec.Terminal = &place.TerminalSpec{Rows: size.Row, Columns: size.Col, Output: s.outputPath()}
		if s.user != nil {
			spec.Terminal.User = &s.user.credential
		}
	}
	return nil
}

// connectInput begins to pass on our input to the job.
func (s *supervisor) connectInput() (err error) {
	switch {
	case s.record.Input == inputTerminal && s.Terminal != nil:
		s.console, err = s.openConsole()
		return err
	case s.record.Input != inputStream || s.Stdin == nil:
		return nil
	case place.FeedEnded(s.feedDir()):
		s.say("the job's input has come to its end before: it gets none of this one")
		return nil
	}
	to, err := place.OpenFeed(s.feedDir())
	if err != nil {
		return fmt.Errorf("input of the job: %w", err)
	}
	go func() { // as long as this program lives
		defer to.Close()
		_, err := io.Copy(to, s.Stdin)
		if err == nil {
			err = to.Sync()
		}
		if err == nil {
			err = place.EndFeed(s.feedDir())
		}
		if err != nil {
			s.say(fmt.Sprintf("the job gets no more input: %v", err))
		}
	}()
	return nil
}
