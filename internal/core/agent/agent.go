// Package agent tells the guest, the library that cucriu run --dir loads into a job, to move the memory of
// the GPUs to the host and back. The library's side is internal/kit/guest/lib/agent.c.
//
// All that is read here is the job's own, which may be hostile: nothing is believed that the
// driver, the kernel or an image does not also say.
package agent

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/guest"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
)

// Command is what an agent is told.
type Command uint32

// The commands.
const (
	Prepare Command = iota + 1 // have the threads ready
	Close                      // hold calls to the driver back, before they begin
	Open                       // let them begin
	Out                        // copy the memory of the GPUs to the host, and free it
	In                         // the way back
	Finish                     // open, and let the threads rest
	OutKept                    // Out, and the GPUs keep a copy for who has [Status.Descriptor]
	LetGo                      // close the own copy of that
	Connect                    // make a socket through which it is sent back: [Status.Descriptor]
	InKept                     // the way back from the copies on the GPUs
	List                       // say what other processes have of the memory, and it of theirs: [Agent.Links]
	Give                       // put descriptors of what others have into a socket: [Status.Descriptor]
	Take                       // put up what is in that socket, and was taken down
	Down                       // take down what other processes own
	pass                       // let some calls begin although the gate is closed: [Agent.LetThrough]
)

var names = map[Command]string{
	Prepare: "prepare", Close: "close", Open: "open", Out: "out", In: "in", Finish: "finish",
	OutKept: "out, kept", LetGo: "let go", Connect: "connect", InKept: "in, kept",
	List: "list", Give: "give", Take: "take", Down: "down", pass: "pass",
}

func (c Command) String() string { return names[c] }

// State says where the memory is.
type State uint32

// The states.
const (
	Idle     State = iota
	Prepared       // the memory is on the GPUs, and the threads are there
	Emptied        // the memory is on the host
)

// Errors of a command that has changed nothing.
var (
	ErrBusy    = errors.New("a thread of the program was stopped in the library")
	ErrNothing = errors.New("there is too little memory for the library to move")
	ErrGiving  = errors.New("memory is on its way to another process, which is opening it")
	ErrUnread  = errors.New("the library in the job cannot read the files of the image")
	errCounted = errors.New("the memory was only counted")
)

// ResultError is a CUresult with which a command has failed.
type ResultError struct {
	Command Command
	Result  int32
}

func (e *ResultError) Error() string {
	return fmt.Sprintf("the library in the job (%v): CUDA error %d", e.Command, e.Result)
}

// Answered reports whether an error of [Agent.Do] is the agent's own, which has done with the command.
func Answered(err error) bool {
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrNothing) || errors.Is(err, ErrGiving) ||
		errors.Is(err, ErrUnread) || errors.Is(err, errCounted) || errors.As(err, new(*ResultError))
}

// mailbox is struct mailbox of agent.c.
type mailbox struct {
	Magic         [8]byte
	Version       uint32
	Command, Done uint32
	Result        int32
	State         State
	Closed        uint32
	Moved         uint64    // grows while a command gets on
	Threads       [17]int32 // of the library, as their own pid namespace numbers them; or 0
	_             int32

	mailboxSince2
	mailboxSince3
	mailboxSince4
	mailboxSince5
	mailboxSince6
	mailboxSince7
	mailboxSince8
	mailboxSince9
}

// mailboxSince2 is what version 2 has more.
type mailboxSince2 struct {
	Staging proc.Range // where the memory is while it is on the host
}

// mailboxSince3 is what version 3 has more.
type mailboxSince3 struct {
	Descriptor int32
	KeptCount  uint32
	Kept       uint64 // the address of as many of struct kept
	Hashing    hashing
}

// mailboxSince4 is what version 4 has more: struct sharing of share.h.
type mailboxSince4 struct {
	Down  uint32
	Count uint32
	Links uint64 // the address of as many [Link]
	From  uint64 // which part [Give] begins with
	Given uint64 // how many descriptors it gave
}

// mailboxSince5 is what version 5 has more.
type mailboxSince5 struct {
	Unserved uint64 // how much memory of other processes it has by the driver alone
}

// mailboxSince6 is what version 6 has more.
type mailboxSince6 struct {
	Passes, _ uint32 // how many calls [pass] lets begin
}

// mailboxSince7 is what version 7 has more.
type mailboxSince7 struct {
	Counts         uint64 // not 0: [Out] copies nothing, and says how much it would
	Whole, Content uint64 // the answer: how much memory it moves, and how much of that is copied
}

// mailboxSince8 is what version 8 has more.
type mailboxSince8 struct {
	Takes uint64 // how many messages [Take] finds in the socket
}

// mailboxSince9 is what version 9 has more.
type mailboxSince9 struct {
	Pieces uint64 // how many [In] reads from files; 0: the memory is in the process
}

// hashing is struct hashing of hash.h.
type hashing struct {
	Generation, Base uint64
	Of               proc.Range
	Random           [4]uint64
	CopiesAll        uint64

	Slice, Count, Same uint64 // the answer
}

const (
	symbol        = "cucriu_guest"
	version       = 9 // and those before: a job keeps the library with which it was started
	versionOffset = 8
	commandOffset = 12
)

// Latest is the newest version of the library that this program knows.
const Latest = version

var magic = [8]byte{'c', 'u', 'c', 'r', 'i', 'u', 1}

// Agent is the agent of a process.
type Agent struct {
	process *proc.Process
	address uint64 // of the mailbox
	// Patience is how long a command may go on without getting anywhere; 0: a minute.
	Patience time.Duration
}

// Find finds the agent of a process. Without one that it knows, it returns nil.
func Find(process *proc.Process) (*Agent, error) {
	mappings, err := proc.Mappings(process.PID)
	if err != nil {
		return nil, err
	}
	for left := mostLibraries; len(mappings) > 0 && left > 0; mappings = mappings[1:] {
		m := mappings[0]
		if m.Offset != 0 || !library.MatchString(strings.TrimSuffix(filepath.Base(m.Pathname), " (deleted)")) {
			continue
		}
		left--
		offset, err := mailboxIn(process.ReadMemory, uint64(m.StartAddr))
		if errors.Is(err, proc.ErrGone) {
			return nil, err
		}
		if err != nil {
			continue // another library, or a file that is no library
		}
		a := &Agent{process: process, address: uint64(m.StartAddr) + offset}
		box, err := a.read()
		if err != nil {
			return nil, err
		}
		if box.Threads[0] == 0 || box.Version == 0 || box.Version > version {
			continue // it is not the one that the driver's calls reach, or is of another time
		}
		return a, nil
	}
	return nil, nil
}

// VersionIn returns the version of the library in a process; 0 if it has none that this program knows.
func VersionIn(pid int) int {
	process, err := proc.Open(pid)
	if err != nil {
		return 0
	}
	defer process.Close()
	a, err := Find(process)
	if err != nil || a == nil {
		return 0
	}
	box, _ := a.read()
	return int(box.Version)
}

// endOf returns where what a version's mailbox has ends.
func endOf(v int) int {
	end := binary.Size(mailbox{})
	for _, since := range []any{
		mailboxSince2{},
		mailboxSince3{},
		mailboxSince4{},
		mailboxSince5{},
		mailboxSince6{},
		mailboxSince7{},
		mailboxSince8{},
		mailboxSince9{},
	}[v-1:] {
		end -= binary.Size(since)
	}
	return end
}

func (a *Agent) read() (box mailbox, err error) {
	data := make([]byte, binary.Size(mailbox{})) // what an earlier version lacks is 0
	for v, read := 1, 0; v <= version; v++ {
		if v > 1 && int(binary.LittleEndian.Uint32(data[versionOffset:])) < v {
			break
		}
		if err = a.process.ReadMemory(data[read:endOf(v)], a.address+uint64(read)); err != nil {
			break
		}
		read = endOf(v)
	}
	if err == nil {
		err = binary.Read(bytes.NewReader(data), binary.LittleEndian, &box)
	}
	if err == nil && box.Magic != magic {
		err = fmt.Errorf("process %d has executed another program, or its library is damaged", a.process.PID)
	}
	return box, err
}

// Status is what an agent says of itself.
type Status struct {
	State   State
	Closed  bool       // the gate is
	Busy    bool       // a command is under way
	Staging proc.Range // where the memory is, if it is [Emptied]; empty if the library does not say
	Down    bool       // memory of other processes is taken down
	Given   uint64     // how many descriptors the last [Give] gave: none after all were given
	// Descriptor is the socket of which the caller may take a copy after [OutKept], [Connect] and [Give]; -1 if there is none.
	Descriptor int
}

// Status returns what the agent says of itself.
func (a *Agent) Status() (Status, error) {
	box, err := a.read()
	status := Status{State: box.State, Closed: box.Closed != 0, Busy: box.Done != box.Command, Staging: box.Staging, Down: box.Down > 0, Given: box.Given, Descriptor: -1}
	if box.Version >= 3 {
		status.Descriptor = int(box.Descriptor)
	}
	return status, err
}

// Kept returns how much memory, in bytes, [OutKept] has left on each GPU.
func (a *Agent) Kept() (map[cudackpt.UUID]uint64, error) {
	const mostGPUs = 64 // of keep.h
	box, err := a.read()
	if err != nil {
		return nil, err
	}
	list := make([]struct {
		GPU   cudackpt.UUID
		Bytes uint64
	}, min(box.KeptCount, mostGPUs))
	if err := a.readTable(list, box.Kept); err != nil {
		return nil, err
	}
	kept := make(map[cudackpt.UUID]uint64)
	for _, on := range list {
		if on.Bytes > 0 {
			kept[on.GPU] += on.Bytes
		}
	}
	return kept, nil
}

// readTable reads as many elements as a slice has from the process's memory.
func (a *Agent) readTable(slice any, address uint64) error {
	data := make([]byte, binary.Size(slice))
	err := a.process.ReadMemory(data, address)
	if err == nil {
		_, err = binary.Decode(data, binary.LittleEndian, slice)
	}
	return err
}

// Compare has the next [Out] or [OutKept] find out what has not changed since the one that was called base, of what was
// in a range then, and not copy that, unless all is to be copied. What is out then is called generation. 0 is none. An older library
// takes everything for changed.
func (a *Agent) Compare(generation, base uint64, of proc.Range, copyAll bool) error {
	box, err := a.read()
	if err != nil || box.Version < 3 {
		return err
	}
	h := hashing{Generation: generation, Base: base, Of: of}
	if copyAll {
		h.CopiesAll = 1
	}
	random := make([]byte, binary.Size(h.Random))
	rand.Read(random)
	if _, err := binary.Decode(random, binary.LittleEndian, &h.Random); err != nil {
		return err
	}
	data, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil {
		return err
	}
	return a.process.WriteMemory(data, a.address+uint64(endOf(3)-binary.Size(h)))
}

// Counts reports whether the library can count what it would copy: see [Agent.SetCounting].
func (a *Agent) Counts() bool {
	box, err := a.read()
	return err == nil && box.Version >= 7
}

// SetCounting has the next [Out] copy nothing, or copy again.
func (a *Agent) SetCounting(on bool) error {
	if !a.Counts() {
		return nil
	}
	counts := uint64(0)
	if on {
		counts = 1
	}
	return a.process.WriteMemory(binary.LittleEndian.AppendUint64(nil, counts), a.address+uint64(endOf(6)))
}

// Spared returns how much of the memory an [Out] that has counted would move without a copy: it is 0, or
// an earlier image has it. It is what the job's process says. answer is that of the command.
func (a *Agent) Spared(answer error) (uint64, error) {
	if !errors.Is(answer, errCounted) {
		return 0, answer
	}
	box, err := a.read()
	if err != nil || box.Content > box.Whole {
		return 0, err
	}
	return box.Whole - box.Content, nil
}

// mostSlices is how many slices a process can have: 1 TiB at least.
const mostSlices = 1 << 20

// Same is memory on the host that has not changed, and is not copied again.
type Same struct {
	Now    proc.Range
	Before uint64 // where it was then
}

// Same returns what has not changed, in the order of the addresses, and whether it was copied all the same.
func (a *Agent) Same() (same []Same, copied bool, err error) {
	box, err := a.read()
	h := box.Hashing
	slice := h.Slice
	if err != nil || box.Version < 3 || h.Same == 0 || box.Staging.Start >= box.Staging.End {
		return nil, false, err
	}
	if box.Done != box.Command {
		return nil, false, fmt.Errorf("the library in process %d is at work", a.process.PID)
	}
	if slice != 1<<20 && slice != 4<<20 || h.Count > box.Staging.Size()/slice || h.Count > mostSlices {
		return nil, false, fmt.Errorf("the library in process %d tells of %d slices of %d bytes in %d bytes", a.process.PID, h.Count, slice, box.Staging.Size())
	}
	places := make([]uint64, h.Count)
	if err := a.readTable(places, h.Same); err != nil {
		return nil, false, err
	}
	for i, before := range places {
		now := proc.Range{Start: box.Staging.Start + uint64(i)*slice, End: box.Staging.Start + uint64(i+1)*slice}
		if before == 0 {
			continue
		}
		if last := len(same) - 1; last >= 0 && same[last].Now.End == now.Start && same[last].Before+same[last].Now.Size() == before {
			same[last].Now.End = now.End
			continue
		}
		same = append(same, Same{now, before})
	}
	return same, h.CopiesAll != 0, nil
}

// callsOfKeep are the system calls of keep.c that a program need not make itself.
var callsOfKeep = []inject.Call{
	{Number: unix.SYS_SOCKETPAIR, Arguments: []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}},
	{Number: unix.SYS_SENDMSG, Arguments: []uint64{3, 0, unix.MSG_NOSIGNAL}},
	{Number: unix.SYS_RECVMSG, Arguments: []uint64{3, 0, unix.MSG_CMSG_CLOEXEC}},
}

// CanKeep reports whether the agent knows [OutKept], and may make the system calls that this takes: some filter of
// the program's might kill it for one.
func (a *Agent) CanKeep(ctx context.Context) error {
	box, err := a.read()
	if err != nil {
		return err
	}
	if box.Version < 3 {
		return errors.ErrUnsupported
	}
	return a.requireAllowed(ctx, callsOfKeep)
}

// RequireAllowed fails with [inject.ErrFiltered] unless the library may make the system calls that all commands take.
func (a *Agent) RequireAllowed(ctx context.Context) error {
	box, err := a.read()
	if err != nil {
		return err
	}
	all := guest.Calls
	if box.Version < 8 {
		all = slices.Concat(all, guest.CallsOfThreads)
	}
	var calls []inject.Call
	for _, c := range all {
		calls = append(calls, inject.Call(c))
	}
	return a.requireAllowed(ctx, calls)
}

// requireAllowed asks the filters of the library's threads, which need not be those of the program's.
func (a *Agent) requireAllowed(ctx context.Context, calls []inject.Call) error {
	tids, _, err := a.threads()
	if err != nil {
		return err
	}
	return inject.RequireAllowed(ctx, tids, calls...)
}

// patience is how long a command may go on without getting anywhere, on a machine however busy.
const patience = time.Minute

// silence is for how long nothing has moved.
type silence struct {
	moved uint64
	last  time.Time // of the looks
	total time.Duration
}

// mostBetween is what the time between two looks counts at most. When more has passed, this program stood
// still, and so did the library: a virtual machine was paused, or had no CPU.
const mostBetween = 100 * time.Millisecond

// look returns for how long it has been silent.
func (s *silence) look(now time.Time, moved uint64) time.Duration {
	s.total += min(now.Sub(s.last), mostBetween)
	if moved != s.moved {
		s.total = 0
	}
	s.moved, s.last = moved, now
	return s.total
}

// Do has the agent obey a command, which must be able to run. If an earlier one is under way, it waits for
// that first. After an error that [Answered] does not know, the command may yet be obeyed.
func (a *Agent) Do(ctx context.Context, c Command) error {
	box, err := a.await(ctx, c, func(box *mailbox) bool { return box.Done == box.Command })
	if err != nil {
		return err
	}
	command := (box.Done/16+1)*16 | uint32(c)
	if err := a.process.WriteMemory(binary.LittleEndian.AppendUint32(nil, command), a.address+commandOffset); err != nil {
		return err
	}
	if box.State == Idle && box.Closed == 0 {
		if err := a.wake(ctx); err != nil {
			return err
		}
	}
	if err := failpoint.Hit(ctx, "told-"+strings.ReplaceAll(c.String(), ", ", "-"), 0); err != nil {
		return err
	}
	if box, err = a.await(ctx, c, func(box *mailbox) bool { return box.Done == command }); err != nil {
		return err
	}
	switch box.Result {
	case 0:
		return nil
	case -1:
		return ErrBusy
	case -2:
		return ErrNothing
	case -3:
		return ErrGiving
	case -4:
		return errCounted
	case -5:
		return ErrUnread
	}
	return &ResultError{c, box.Result}
}

// await waits until the mailbox says what is waited for, as long as something moves.
func (a *Agent) await(ctx context.Context, c Command, done func(*mailbox) bool) (mailbox, error) {
	silent, patience := silence{last: time.Now()}, cmp.Or(a.Patience, patience)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		box, err := a.read()
		if err != nil || done(&box) {
			return box, err
		}
		if silent.look(time.Now(), box.Moved) > patience {
			return box, fmt.Errorf("the library in process %d did not answer within %v (%v): %s", a.process.PID, patience, c, a.where())
		}
		select {
		case <-ctx.Done():
			return box, fmt.Errorf("the library in process %d (%v): %w", a.process.PID, c, ctx.Err())
		case <-time.After(pause): // there is no event for what another process writes
		}
	}
}

// where says what the threads are at that a command needs.
func (a *Agent) where() string {
	tids, err := a.Helpers()
	if err != nil {
		return err.Error()
	}
	at := make(map[string]int)
	for _, tid := range tids {
		at[proc.WhereIs(a.process.PID, tid)]++
	}
	var text []string
	for _, where := range slices.Sorted(maps.Keys(at)) {
		text = append(text, fmt.Sprintf("%s %s", units.Count(at[where], "thread"), where))
	}
	return strings.Join(text, ", ")
}

// LetThrough lets so many calls to the driver begin although the gate is closed, until it is closed again. An older
// library opens the gate.
func (a *Agent) LetThrough(ctx context.Context, calls uint32) error {
	box, err := a.read()
	if err != nil {
		return err
	}
	if box.Version < 6 {
		return a.Do(ctx, Open)
	}
	if err := a.process.WriteMemory(binary.LittleEndian.AppendUint32(nil, calls), a.address+uint64(endOf(5))); err != nil {
		return err
	}
	return a.Do(ctx, pass)
}

// AtRest fails unless the library says what it says of itself while nobody dumps the process. The program can write there.
func (a *Agent) AtRest() error {
	box, err := a.read()
	if err != nil {
		return err
	}
	threads, _, err := a.threads()
	switch {
	case err != nil:
		return err
	case box.State > Prepared || box.Closed != 0 || box.Down != 0:
		return fmt.Errorf("process %d has overwritten the state of its library, which claims to be in a dump", a.process.PID)
	case len(threads) == 0:
		return fmt.Errorf("process %d has overwritten the state of its library, which names no thread of its own", a.process.PID)
	}
	return nil
}

// wake has the agent look into its mailbox: a thread that has been traced begins its wait anew.
func (a *Agent) wake(ctx context.Context) error {
	tids, _, err := a.threads()
	if err != nil {
		return err
	}
	tracer := inject.NewTracer()
	err = tracer.Run(tids...)
	return errors.Join(err, tracer.Release(ctx))
}

// Helpers returns the threads, besides the restore thread, that a command needs while the program's own are
// stopped: the library's, and the driver's, of which there is one for each GPU.
func (a *Agent) Helpers() ([]int, error) {
	library, driver, err := a.threads()
	return slices.Concat(library, driver), err
}

// DriverThreads returns the threads of the driver in a process, besides the restore thread.
func (a *Agent) DriverThreads() ([]int, error) {
	_, driver, err := a.threads()
	return driver, err
}

// threads returns the threads of the library, and those of the driver by their name.
func (a *Agent) threads() (library, driver []int, err error) {
	box, err := a.read()
	if err != nil {
		return nil, nil, err
	}
	tids, err := proc.Threads(a.process.PID)
	if err != nil {
		return nil, nil, err
	}
	for _, tid := range tids {
		if tid == a.process.PID { // the program's first
			continue
		}
		status, err := proc.ReadStatus(tid)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		switch id := status.ImagePID(); {
		case id > 0 && slices.Contains(box.Threads[:], int32(id)):
			library = append(library, tid)
		case status.Name == drivers.EventThread:
			driver = append(driver, tid)
		}
	}
	return library, driver, nil
}
