package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func isGone(err error) bool { return errors.Is(err, ErrGone) }

// reaped is a process that has ended and was reaped.
func reaped(t *testing.T) *Process {
	t.Helper()
	cmd := start(t, "sleep", "100")
	p := open(t, cmd.Process.Pid)
	must(t, p.Signal(unix.SIGKILL))
	_ = cmd.Wait()
	return p
}

func TestMemoryIsReadAndWrittenAsAWhole(t *testing.T) {
	const private, rw = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, unix.PROT_READ | unix.PROT_WRITE
	p := open(t, os.Getpid())
	page := os.Getpagesize()
	for name, tt := range map[string]struct {
		change          func(t *testing.T, middle []byte) // of three pages
		reads, writes   bool
		middleUnchanged bool
	}{
		"writable":       {func(*testing.T, []byte) {}, true, true, false},
		"a hole":         {punch, false, false, false},
		"only read":      {protect(unix.PROT_READ), true, false, true},
		"not accessible": {protect(unix.PROT_NONE), false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := mapPages(t, 3, rw, private, -1)
			address := rangeOf(memory).Start
			for i := range memory {
				memory[i] = byte(i % 251)
			}
			// The first page and a byte, from its middle on: neither end is aligned.
			want := bytes.Clone(memory[page/2 : 2*page+1])
			tt.change(t, memory[page:2*page])

			data := make([]byte, len(want))
			checkTransfer(t, p, "read", p.ReadMemory(data, address+uint64(page/2)), tt.reads)
			if tt.reads && !bytes.Equal(data, want) {
				t.Error("read something else")
			}
			checkTransfer(t, p, "write", p.WriteMemory(bytes.Repeat([]byte{0xee}, len(want)), address+uint64(page/2)), tt.writes)
			if tt.writes && len(bytes.Trim(memory[page/2:2*page+1], "\xee")) > 0 {
				t.Error("something else was written")
			}
			if tt.middleUnchanged {
				must(t, unix.Mprotect(memory[page:2*page], rw))
				if !bytes.Equal(memory[page:2*page], want[page-page/2:][:page]) {
					t.Error("what cannot be written has changed")
				}
			}
			if memory[page/2-1] != byte((page/2-1)%251) || memory[2*page+1] != byte((2*page+1)%251) {
				t.Error("memory beside it was written")
			}
		})
	}
}

func protect(protection int) func(*testing.T, []byte) {
	return func(t *testing.T, memory []byte) { t.Helper(); must(t, unix.Mprotect(memory, protection)) }
}

// checkTransfer expects that everything was transferred, or an error that names the process
// and the first address that could not be reached.
func checkTransfer(t *testing.T, p *Process, what string, err error, done bool) {
	t.Helper()
	if done {
		must(t, err)
	} else if !errors.Is(err, unix.EFAULT) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), p.String()) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestTheErrorSaysWhereTheMemoryEnds(t *testing.T) {
	p := open(t, os.Getpid())
	memory := mapPages(t, 2, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1)
	page := len(memory) / 2
	punch(t, memory[page:])
	err := p.ReadMemory(make([]byte, len(memory)), rangeOf(memory).Start)
	if want := fmt.Sprintf("read %d bytes of memory of %v at %#x", page, p, rangeOf(memory[page:]).Start); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestTheMemoryOfAProcessThatHasEndedIsGone(t *testing.T) {
	zombie := open(t, start(t, "sleep", "100").Process.Pid)
	space, err := ReadAddressSpace(zombie.PID)
	must(t, err)
	address := space.Mapped[0].Start // of its program
	must(t, zombie.ReadMemory(make([]byte, 1), address))
	must(t, zombie.Signal(unix.SIGKILL))
	must(t, zombie.WaitExit(t.Context())) // nobody has reaped it
	for name, p := range map[string]*Process{"zombie": zombie, "reaped": reaped(t)} {
		data := slices.Repeat([]byte{7}, 8)
		for what, err := range map[string]error{"read": p.ReadMemory(data, address), "write": p.WriteMemory(data, address)} {
			if !isGone(err) || !strings.Contains(err.Error(), what+" memory of "+p.String()) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}
