package inject

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// boardFD is the target's descriptor of the board. It is not used once that is mapped.
const boardFD = 3

func TestDisconnectTakesFilesAndMappingsAway(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	ranges := []proc.Range{p.part(0, 4<<20), p.part(8<<20, 4096)}
	p.stop(t)
	before := p.descriptors(t)
	b := p.borrow(t, p.tids()[0])
	must(t, b.Disconnect(t.Context(), []Descriptor{{boardFD, true}, {6, false}}, ranges))
	must(t, b.Disconnect(t.Context(), []Descriptor{{boardFD, true}}, ranges[:1])) // twice
	must(t, b.Return(t.Context()))
	p.wantReturned(t)
	p.wantNull(t, boardFD, true)
	p.wantNull(t, 6, false)
	for _, r := range ranges {
		if perms := p.permissions(t, r); perms != (procfs.ProcMapPermissions{Private: true}) {
			t.Errorf("the memory at %#x has the permissions %+v", r.Start, perms)
		}
	}
	if perms := p.permissions(t, p.part(4<<20, 4096)); perms != (procfs.ProcMapPermissions{Read: true, Write: true, Private: true}) {
		t.Errorf("the memory between them has the permissions %+v", perms)
	}
	if now := p.descriptors(t); now != before {
		t.Errorf("it has %d descriptors open, and had %d", now, before)
	}
	must(t, p.Signal(unix.SIGCONT))
}

func TestDisconnectNeedsNoFreeDescriptor(t *testing.T) {
	t.Parallel()
	p := startBorrowable(t)
	p.stop(t)
	none := unix.Rlimit{Cur: 0, Max: 1024}
	must(t, unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, &none, nil))
	b := p.borrow(t, p.tids()[0])
	if err := b.Disconnect(t.Context(), []Descriptor{{boardFD, true}}, nil); err == nil {
		t.Error("a process that may open nothing has opened a file")
	}
	all := unix.Rlimit{Cur: uint64(p.descriptors(t)), Max: 1024}
	must(t, unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, &all, nil))
	must(t, b.Disconnect(t.Context(), []Descriptor{{boardFD, true}}, nil))
	must(t, b.Return(t.Context()))
	p.wantNull(t, boardFD, true)
	p.goesOn(t)
}

// descriptors counts the open descriptors.
func (p *borrowable) descriptors(t *testing.T) int {
	t.Helper()
	open, err := proc.Descriptors(p.PID)
	must(t, err)
	return len(open)
}

func (p *borrowable) wantNull(t *testing.T, fd int, closeOnExec bool) {
	t.Helper()
	if null, err := proc.IsNull(fmt.Sprintf("/proc/%d/fd/%d", p.PID, fd)); err != nil || !null {
		t.Errorf("descriptor %d is not /dev/null (%v)", fd, err)
	}
	if info, err := proc.ReadDescriptor(p.PID, strconv.Itoa(fd)); err != nil || info.Flags&unix.O_CLOEXEC != 0 != closeOnExec {
		t.Errorf("descriptor %d is closed on exec: %v, want %v (%v)", fd, info, closeOnExec, err)
	}
}

// permissions returns the permissions of a range that is one mapping.
func (p *borrowable) permissions(t *testing.T, r proc.Range) procfs.ProcMapPermissions {
	t.Helper()
	mappings, err := proc.Mappings(p.PID)
	must(t, err)
	for _, m := range mappings {
		if uint64(m.StartAddr) <= r.Start && r.End <= uint64(m.EndAddr) {
			return *m.Perms
		}
	}
	return procfs.ProcMapPermissions{}
}
