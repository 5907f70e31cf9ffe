package first

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/durable"
)

//go:embed built
var built embed.FS

// File is the program's name in the directory of a job.
const File = "first"

// Mode is the program's: the job may be another user's.
const Mode = 0o755

// title is what ps(1) shows of it.
const title = "cucriu: first process of the job"

// Unfit says why the job with this directory cannot have a first process of ours; it is nil if it can.
func Unfit(dir string) error {
	if _, err := program.Read(); err != nil {
		return err
	}
	if durable.IsNoexec(dir) {
		return fmt.Errorf("%s is on a file system that is mounted with noexec", dir)
	}
	return nil
}

var program = durable.Built{In: built, Name: "first-" + runtime.GOARCH}

// Place puts the program into the directory of a job that is started.
func Place(dir string) error { return program.Place(filepath.Join(dir, File), Mode) }

// Start is how a command is started by the program.
type Start struct {
	Path       string     // to execute
	Args       []string   // what the command's are put behind
	ExtraFiles []*os.File // become the descriptors 3 and 4
	answer     *os.File
}

// Prepare opens the program at a path for the start of a command. terminal says that the command's standard
// input becomes the terminal of its session.
func Prepare(path, command string, terminal bool) (*Start, error) {
	program, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	answer, report, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, program.Close())
	}
	has := "-"
	if terminal {
		has = "t"
	}
	// By its descriptor: the job's user need not see the directory.
	return &Start{"/proc/self/fd/4", []string{title, has, command}, []*os.File{report, program}, answer}, nil
}

// Await returns once the command runs, or with the error of its execve.
func (s *Start) Await() error {
	s.closeExtra()
	var number int32
	err := binary.Read(s.answer, binary.NativeEndian, &number)
	if err == nil {
		return unix.Errno(number)
	}
	return nil // the end: it runs
}

// Close closes what Prepare has opened.
func (s *Start) Close() {
	s.closeExtra()
	s.answer.Close()
}

func (s *Start) closeExtra() {
	for _, f := range s.ExtraFiles {
		f.Close()
	}
	s.ExtraFiles = nil
}

const prefix = "cucriu:"

// Of reads the name of a process (/proc/PID/comm), and reports whether it is that of a first process. command
// is the pid of the command in its pid namespace, 0 if that has ended.
func Of(name string) (command int, is bool) {
	text, is := strings.CutPrefix(name, prefix)
	if text == "ended" {
		return 0, is
	}
	command, err := strconv.Atoi(text)
	return command, is && err == nil && command > 0
}
