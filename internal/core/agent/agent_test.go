package agent

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// TestAMailboxOfEitherVersion: a job keeps the library with which it was started, and that of an older version knows less.
func TestAMailboxOfEitherVersion(t *testing.T) {
	process, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	staging := proc.Range{Start: 0x1000, End: 0x5000}
	for version, want := range map[uint32]proc.Range{1: {}, 2: staging} {
		var memory bytes.Buffer
		box := mailbox{Magic: magic, Version: version, State: Emptied, Closed: 1, Command: 5, Done: 5, mailboxSince2: mailboxSince2{staging}}
		if err := binary.Write(&memory, binary.LittleEndian, box); err != nil {
			t.Fatal(err)
		}
		data := memory.Bytes()
		a := &Agent{process: process, address: uint64(uintptr(unsafe.Pointer(&data[0])))}
		got, err := a.Status()
		if wanted := (Status{State: Emptied, Closed: true, Staging: want, Descriptor: -1}); err != nil || got != wanted {
			t.Errorf("version %d: %+v, %v; want %+v", version, got, err, wanted)
		}
		data[0]++
		if _, err := a.Status(); err == nil {
			t.Errorf("version %d: a mailbox without its magic is read", version)
		}
		runtime.KeepAlive(data)
	}
}

// TestATimeInWhichNobodyLookedIsNoSilence: when a virtual machine was paused, the clock has gone on, and neither the library
// nor who waits for it has run.
func TestATimeInWhichNobodyLookedIsNoSilence(t *testing.T) {
	at := time.Now()
	s := silence{last: at}
	for range 10 {
		at = at.Add(time.Hour)
		if silent := s.look(at, 0); silent > patience {
			t.Fatalf("%v after ten looks", silent)
		}
	}
	for s.total <= patience {
		before := s.total
		if at = at.Add(time.Millisecond); s.look(at, 0) <= before {
			t.Fatal("a silence that is looked at does not grow")
		}
	}
	if got := s.look(at.Add(time.Millisecond), 1); got != 0 {
		t.Errorf("after it has moved: %v", got)
	}
}

// TestWhatAProgramHasOverwrittenIsNotAtRest, as it is while nobody dumps the process.
func TestWhatAProgramHasOverwrittenIsNotAtRest(t *testing.T) {
	process, err := proc.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	end := make(chan struct{})
	defer close(end)
	thread := make(chan int32)
	own := int32(os.Getpid())
	for own == int32(os.Getpid()) { // the first thread is no library's
		go func() {
			runtime.LockOSThread()
			thread <- int32(unix.Gettid())
			<-end
		}()
		own = <-thread
	}
	for name, test := range map[string]struct {
		box mailbox
		ok  bool
	}{
		"idle":             {mailbox{}, true},
		"prepared":         {mailbox{State: Prepared}, true},
		"memory is out":    {mailbox{State: Emptied}, false},
		"the gate is shut": {mailbox{Closed: 1}, false},
		"taken down":       {mailbox{mailboxSince4: mailboxSince4{Down: 1}}, false},
		"no thread of its": {mailbox{Threads: [17]int32{1, 1<<31 - 1, int32(os.Getpid())}}, false},
	} {
		box := test.box
		box.Magic, box.Version = magic, version
		if box.Threads[0] == 0 {
			box.Threads[0] = own
		}
		var memory bytes.Buffer
		if err := binary.Write(&memory, binary.LittleEndian, box); err != nil {
			t.Fatal(err)
		}
		data := memory.Bytes()
		a := &Agent{process: process, address: uint64(uintptr(unsafe.Pointer(&data[0])))}
		if err := a.AtRest(); (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
		runtime.KeepAlive(data)
	}
}
