package prepare

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// The test program is also a job without CUDA, which uses files and sockets in every way.
const (
	folderVariable  = "PREPARE_TEST_FOLDER"
	outsideVariable = "PREPARE_TEST_OUTSIDE" // an address to connect to; empty for none
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(folderVariable); dir != "" {
		if err := runProgram(dir, os.Getenv(outsideVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	testenv.Main(m)
}

// said is what the program tells of itself when it is ready.
type said struct {
	Listening, Inside, Outside string
}

func runProgram(dir, outside string) error {
	var err error
	keep := func(file *os.File, openErr error) *os.File {
		if openErr != nil && err == nil {
			err = openErr
		}
		return file
	}
	open := func(name string, flags int) *os.File {
		return keep(os.OpenFile(filepath.Join(dir, name), flags, 0o600))
	}
	held := []*os.File{
		open("appended", os.O_WRONLY|os.O_APPEND|os.O_CREATE), open("written", os.O_RDWR|os.O_CREATE),
		open("both", os.O_WRONLY|os.O_APPEND|os.O_CREATE), open("both", os.O_RDONLY), keep(os.Open(filepath.Join(dir, "folder"))),
	}
	if mkErr := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); mkErr != nil {
		return mkErr
	}
	held = append(held, open("pipe", os.O_RDWR))
	ghost, renamed := open("ghost", os.O_RDWR|os.O_CREATE), open("renamed", os.O_RDWR|os.O_CREATE)
	held = append(held, ghost, renamed)
	shared := open("shared", os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return os.Remove(ghost.Name()) },
		func() error { return os.Link(renamed.Name(), renamed.Name()+".other") },
		func() error { return os.Remove(renamed.Name()) },
		func() error { return shared.Truncate(4096) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	memory, err := unix.Mmap(int(shared.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if err := shared.Close(); err != nil {
		return err
	}
	var s said
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	inside, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return err
	}
	accepted, err := listener.Accept()
	if err != nil {
		return err
	}
	s.Listening, s.Inside = listener.Addr().String(), inside.LocalAddr().String()
	conns := []net.Conn{inside, accepted}
	if outside != "" {
		other, err := net.Dial("tcp", outside)
		if err != nil {
			return err
		}
		s.Outside, conns = other.LocalAddr().String(), append(conns, other)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "said.tmp"), data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "said.tmp"), filepath.Join(dir, "said")); err != nil {
		return err
	}
	for {
		// For a moment only: nobody needs this one.
		passing, err := os.Create(filepath.Join(dir, "passing"))
		if err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
		memory[0]++
		if err := passing.Close(); err != nil {
			return err
		}
		if err := os.Rename(passing.Name(), filepath.Join(dir, "passed")); err != nil || len(held) == 0 || len(conns) == 0 {
			return err
		}
	}
}

// startProgram starts the program, below another command if there is one, and returns its pid.
func startProgram(t *testing.T, host *testenv.Host, dir, outside string, above ...string) (int, said) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	host.Setenv(folderVariable, dir)
	host.Setenv(outsideVariable, outside)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := append(above, self)
	pid := host.Spawn(dir, command[0], command[1:]...)
	var s said
	testenv.Eventually(t, testenv.Soon, "the program is ready", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "said"))
		return err == nil && json.Unmarshal(data, &s) == nil
	})
	if len(above) > 0 {
		children, err := proc.Children(pid)
		if err != nil || len(children) != 1 {
			t.Fatalf("the program is not the only child of %v: %v, %v", above, children, err)
		}
		pid = children[0]
	}
	return pid, s
}
