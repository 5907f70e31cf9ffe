package testenv

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// OwnTerminals gives an isolated test numbers of terminals that no other program can take while its job is dumped.
func OwnTerminals(t *testing.T) {
	t.Helper()
	if !namespaces() {
		return
	}
	const options = "newinstance,ptmxmode=0666,mode=620"
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, options); err != nil {
		t.Fatal(err)
	}
}

// NewTerminal returns the two ends of a new pseudo terminal.
func NewTerminal(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, slave, err := OpenTerminal()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close(); slave.Close() })
	return master, slave
}

// OpenTerminal is NewTerminal outside of tests.
func OpenTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	return master, slave, err
}

// StuckTerminal returns a terminal at Ctrl-S, at which nobody reads.
func StuckTerminal(t testing.TB) *os.File {
	t.Helper()
	_, slave := NewTerminal(t)
	if err := unix.IoctlSetInt(int(slave.Fd()), unix.TCXONC, unix.TCOOFF); err != nil {
		t.Fatal(err)
	}
	return slave
}
