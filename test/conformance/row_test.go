package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"cucriu/cudackpt"
)

// The elements of the table.

// testCase is a group of rows about fresh targets.
type testCase struct {
	name   string
	gpus   int       // how many the machine must have; 0 means 1
	with   program   // the target
	also   []program // further targets
	bare   bool      // no target at all
	rows   []row
	lost   bool   // the target does not come back; otherwise it is brought back and its data compared
	endsOn string // the GPUs on which the target must be in the end
	busOf  string // the GPUs whose bus ids the driver must tell it in the end
	probe  bool   // the answers are unknown: it prints them and never fails
	// Why the case cannot be made on one of the drivers; "" if it can.
	notReal, notSim string
}

// row is one line of the table: a call from a state gives a result, leaves a state,
// and blocks or does not.
type row struct {
	name    string                               // "" stands for the text of the call
	from    state                                // the target is first brought into this state
	given   func(*bench) error                   // further circumstances
	on      func(*bench) (int, error)            // returns the pid for the call; the target's by default
	call    call                                 // the call to the driver, or …
	do      func(*bench) (got string, err error) // … if one call is not enough, what to do; got is compared with text
	text    string                               // the expected result of do
	want    []cudackpt.Result                    // one of these
	to      state                                // afterwards
	blocks  bool                                 // until free is called, which by default sends SIGCONT
	free    func(*bench) error
	kill    victim             // while the call is under way
	atLeast time.Duration      // how long the call takes
	atMost  time.Duration      // on the real driver
	then    func(*bench) error // checks what must be true afterwards
	probe   bool
	notSim  string // why the simulated driver cannot make this row; "" if it can
}

// victim is the process that is killed with SIGKILL in the middle of a call.
type victim int

const (
	nobody        victim = iota
	theTarget            // afterwards the call must return
	theController        // afterwards the target must come to the row's state by itself
)

// state is a CUprocessState, or one of the two others below.
type state int

const (
	anyState state = iota // not checked
	running
	locked
	checkpointed
	failed
	gone // no process
)

func stateOf(s uint32) state { return state(s) + running }

func (s state) String() string {
	switch s {
	case anyState:
		return "any state"
	case gone:
		return "gone"
	}
	return cudackpt.State(s - running).String()
}

// call is an entry point with its arguments.
type call struct {
	op    op
	text  string
	args  func() *arguments
	pairs func(*bench) []uuidPair
}

func zeroed() *arguments { return new(arguments) }
func null() *arguments   { return nil }

var (
	getState     = call{op: opState, text: "GetState"}
	getThread    = call{op: opThread, text: "GetRestoreThreadId"}
	checkpoint   = call{op: opCheckpoint, text: "Checkpoint", args: zeroed}
	restore      = call{op: opRestore, text: "Restore", args: zeroed}
	unlock       = call{op: opUnlock, text: "Unlock", args: zeroed}
	restoreEmpty = call{op: opRestore, text: "Restore(empty list)", args: zeroed, pairs: func(*bench) []uuidPair { return make([]uuidPair, 1)[:0] }}
)

// lock is Lock with a timeout. 0 means no time limit.
func lock(timeout time.Duration) call {
	millis := uint32(timeout / time.Millisecond)
	return call{op: opLock, text: fmt.Sprintf("Lock(%d)", millis), args: func() *arguments { return lockArguments(millis) }}
}

// withNull is a call with NULL as its arguments.
func withNull(c call) call {
	name, _, _ := strings.Cut(c.text, "(")
	return call{op: c.op, text: name + "(NULL)", args: null}
}

// restoreMap is Restore with pairs such as "A>B B>A". X and Y stand for GPUs that do not
// exist.
func restoreMap(pairs string) call {
	return call{op: opRestore, text: "Restore(" + pairs + ")", args: zeroed, pairs: func(b *bench) []uuidPair {
		var list []uuidPair
		for word := range strings.FieldsSeq(pairs) {
			from, to, _ := strings.Cut(word, ">")
			list = append(list, uuidPair{b.uuid(from), b.uuid(to)})
		}
		return list
	}}
}

// uuid returns the UUID of a GPU of this machine, or of a GPU that does not exist.
func (b *bench) uuid(letter string) cudackpt.UUID {
	if letter == "X" || letter == "Y" {
		return cudackpt.UUID{0: letter[0], 15: 1}
	}
	return b.gpus[letter[0]-'A'].UUID
}

const (
	success      = cudackpt.ResultSuccess
	invalidValue = cudackpt.ResultInvalidValue
	outOfMemory  = cudackpt.ResultOutOfMemory
	noCUDA       = cudackpt.ResultNotInitialized
	noProcess    = cudackpt.ResultOperatingSystem
	illegalState = cudackpt.ResultIllegalState
	notReady     = cudackpt.ResultNotReady
	notSupported = cudackpt.ResultNotSupported
	unknownError = cudackpt.ResultUnknown
)

func results(r ...cudackpt.Result) []cudackpt.Result { return r }

// refused is a call that is not legal in a state: it returns 401 at once, and nothing
// changes.
func refused(from state, c call) row {
	return row{from: from, call: c, want: results(illegalState), to: from, atMost: atOnce}
}

// allSix makes the six calls with one pid.
func allSix(on func(*bench) (int, error), want cudackpt.Result) []row {
	var rows []row
	for _, c := range []call{getState, getThread, lock(time.Second), checkpoint, restore, unlock} {
		rows = append(rows, row{on: on, call: c, want: results(want), atMost: time.Second})
	}
	return rows
}

// stopped stops the target with SIGSTOP. If traced, its restore thread is then traced and
// runs alone.
func stopped(traced bool) func(*bench) error {
	return func(b *bench) error {
		if err := b.stop(); err != nil || !traced {
			return err
		}
		return b.trace()
	}
}

// expected returns the text of what a row demands.
func (r row) expected(probe bool) string {
	if probe || r.probe {
		return "?"
	}
	if r.do != nil {
		return r.text
	}
	var parts []string
	if r.blocks {
		parts = append(parts, "blocks")
	}
	switch {
	case r.kill == theController:
		parts = append(parts, "by itself")
	case len(r.want) > 0:
		var codes []string
		for _, code := range r.want {
			codes = append(codes, fmt.Sprint(uint32(code)))
		}
		parts = append(parts, strings.Join(codes, "|"))
	}
	if r.to != anyState {
		parts = append(parts, r.to.String())
	}
	if r.atLeast > 0 {
		parts = append(parts, fmt.Sprintf("≥%v", r.atLeast))
	}
	return strings.Join(parts, " ")
}

func (r row) accepts(result cudackpt.Result) bool { return slices.Contains(r.want, result) }

func (r row) title() string {
	if r.name != "" {
		return r.name
	}
	return r.call.text
}
