package conformance

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// run measures one case on fresh targets and reports each row as soon as it is known.
func (b *bench) run(t *testing.T, c testCase, out *report) {
	b.t = t
	defer b.clear()
	reason := ""
	switch {
	case b.real && c.notReal != "":
		reason = c.notReal
	case !b.real && c.notSim != "":
		reason = c.notSim
	case len(b.gpus) < max(1, c.gpus):
		reason = fmt.Sprintf("needs %d GPUs, this machine shows %d", c.gpus, len(b.gpus))
	}
	if reason != "" {
		for _, r := range c.rows {
			out.add(line{verdict: "n/a", name: c.name + ": " + r.title(), expected: r.expected(c.probe), got: reason})
		}
		return
	}
	begun := time.Now()
	err := b.startAll(c)
	if missing := notHere(""); errors.As(err, &missing) {
		for _, r := range c.rows {
			out.add(line{verdict: "n/a", name: c.name + ": " + r.title(), expected: r.expected(c.probe), got: string(missing)})
		}
		return
	}
	if err != nil {
		out.judge(t, c.probe, line{name: c.name + ": start", expected: "starts", got: err.Error(), took: time.Since(begun)})
		return
	}
	for _, r := range c.rows {
		l := line{name: c.name + ": " + r.title(), expected: r.expected(c.probe)}
		if !b.real && r.notSim != "" {
			l.verdict, l.got = "n/a", r.notSim
			out.add(l)
			continue
		}
		got, took, err := b.measure(r)
		l.got, l.took = got, took
		unmakeable := notHere("")
		switch {
		case errors.As(err, &unmakeable):
			l.verdict, l.got = "n/a", string(unmakeable)
			out.add(l)
			continue
		case err != nil:
			l.got = strings.TrimSpace(l.got + " !! " + err.Error())
		}
		out.judge(t, c.probe || r.probe, l)
		if errors.Is(err, errStuck) {
			return // every further call to that process would get stuck too
		}
	}
	if c.bare || c.lost {
		return
	}
	l := line{name: c.name + ": comes back", expected: strings.TrimSpace("whole " + where(c.endsOn, c.busOf))}
	if c.probe {
		l.expected = "?"
	}
	begun = time.Now()
	l.got = "whole"
	if err = b.comeBack(); err != nil {
		l.got = err.Error()
	} else if c.endsOn != "" || c.busOf != "" {
		on, err := b.gpuNames(b.targets[0])
		bus, busErr := b.busNames(b.targets[0])
		if err = errors.Join(err, busErr); err != nil {
			l.got = err.Error()
		}
		if c.endsOn == "" {
			on = ""
		}
		if c.busOf == "" {
			bus = ""
		}
		l.got += " " + where(on, bus)
	}
	l.took = time.Since(begun)
	out.judge(t, c.probe, l)
}

// where returns the text for a place.
func where(on, bus string) string {
	text := ""
	if on != "" {
		text = "on " + on
	}
	if bus != "" {
		text += " told bus of " + bus
	}
	return strings.TrimSpace(text)
}

func (b *bench) startAll(c testCase) error {
	if c.bare {
		return nil
	}
	for _, p := range append([]program{c.with}, c.also...) {
		if _, err := b.startTarget(p); err != nil {
			return err
		}
	}
	return nil
}

// measure creates the circumstances of a row, makes its call, and returns what happened.
// The text equals the expected text of the row if everything is as the row says.
func (b *bench) measure(r row) (got string, took time.Duration, err error) {
	if r.do == nil && r.on == nil {
		r.on = (*bench).main
	}
	var pid int
	if r.from != anyState {
		pid, err = r.pidOr(b)
		if err == nil {
			err = b.bring(pid, r.from)
		}
		if err != nil {
			return "", 0, fmt.Errorf("on the way to %v: %w", r.from, err)
		}
	}
	if r.given != nil {
		if err := r.given(b); err != nil {
			return "", 0, fmt.Errorf("the circumstances: %w", err)
		}
	}
	begun := time.Now()
	if r.do != nil {
		got, err = r.do(b)
		return got, time.Since(begun), err
	}
	if pid, err = r.pidOr(b); err != nil {
		return "", 0, err
	}
	got, a, err := b.makeCall(r, pid)
	took = a.took
	if err != nil {
		return got, took, err
	}
	if r.to != anyState {
		is, stateErr := b.settled(pid, r)
		got, err = got+" "+is.String(), stateErr
	}
	if err == nil && r.then != nil {
		err = r.then(b)
	}
	got = strings.TrimSpace(got)
	if err == nil && b.real && r.atMost > 0 && took > r.atMost {
		err = fmt.Errorf("longer than %v", r.atMost)
	}
	if r.atLeast > 0 {
		if took < r.atLeast {
			return got, took, fmt.Errorf("shorter than %v", r.atLeast)
		}
		got += fmt.Sprintf(" ≥%v", r.atLeast)
	}
	if len(r.want) > 1 {
		got += fmt.Sprintf(" (%d)", uint32(a.result))
	}
	return got, took, err
}

func (r row) pidOr(b *bench) (int, error) {
	if r.on == nil {
		return b.main()
	}
	return r.on(b)
}

// makeCall makes the row's call, and does what is to be done while the call is under way.
func (b *bench) makeCall(r row, pid int) (got string, a answer, err error) {
	if r.kill == theController {
		return b.killController(r, pid)
	}
	if r.kill == theTarget {
		defer b.slow(r.call.name())()
	}
	p := b.begin(r.call, pid)
	if r.kill == theTarget {
		if a, over := p.wait(b.midway(r.call.op)); over {
			return a.String(), a, errors.New("the call was over before the target was killed")
		}
		if err := b.targets[0].kill(); err != nil {
			return "", a, err
		}
	}
	if r.blocks {
		if a, returned := p.wait(blockTime); returned {
			return r.code(a), a, fmt.Errorf("it did not block, and returned after %s", millis(a.took))
		}
		got = "blocks "
		free := r.free
		if free == nil {
			free = (*bench).resume
		}
		if err := free(b); err != nil {
			return got, a, err
		}
	}
	a, returned := p.wait(patience)
	if !returned {
		return got + "never returns", answer{took: patience}, errStuck
	}
	return got + r.code(a), a, nil
}

// code returns the result as it appears in the row's expected text.
func (r row) code(a answer) string {
	if r.accepts(a.result) {
		text, _, _ := strings.Cut(strings.TrimPrefix(r.expected(false), "blocks "), " ")
		if strings.Contains(text, "|") {
			return text
		}
	}
	return fmt.Sprint(uint32(a.result))
}

// name returns the name of the operation in the simulated driver's fault rules.
func (c call) name() string {
	return map[op]string{opState: "state", opThread: "tid", opLock: "lock", opCheckpoint: "checkpoint", opRestore: "restore", opUnlock: "unlock"}[c.op]
}

// killController lets another process make the call, and kills that process midway.
func (b *bench) killController(r row, pid int) (got string, a answer, err error) {
	defer b.slow(r.call.name())()
	k, err := b.newController(r.call, pid, false)
	if err != nil {
		return "", a, err
	}
	begun := time.Now()
	if err := k.proceed(); err != nil {
		return "", a, err
	}
	time.Sleep(b.midway(r.call.op))
	if err := k.kill(); err != nil {
		return "", a, err
	}
	ctx, cancel := within(patience)
	defer cancel()
	for ctx.Err() == nil {
		if is, err := b.state(pid); err != nil || is == r.to {
			return "by itself", answer{took: time.Since(begun)}, err
		}
		time.Sleep(hurriedGap)
	}
	return "not by itself", answer{took: time.Since(begun)}, nil
}

// settled returns the state of a process after a row's call.
func (b *bench) settled(pid int, r row) (state, error) {
	if r.to == gone {
		if !b.targets[0].waitEnd(patience) {
			return anyState, errors.New("the target lives")
		}
		return gone, nil
	}
	return b.state(pid)
}

// comeBack brings every target to running and checks all its data.
func (b *bench) comeBack() error {
	if err := b.release(); err != nil {
		return err
	}
	for _, t := range b.targets {
		for i := range t.dirs {
			pid, err := t.process(i)
			if err != nil {
				return err
			}
			if end := t.end(); end != "" {
				return errors.New("target " + end)
			}
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				return err
			}
			is, err := b.state(pid)
			if err == nil && is == checkpointed {
				// What it saw at first is always right.
				err = b.see(pid, orA(t.sees))
			}
			if err == nil {
				err = b.bring(pid, running)
			}
			if err != nil {
				return err
			}
		}
		if err := t.whole(patience); err != nil {
			return err
		}
	}
	return nil
}

func orA(letters string) string {
	if letters == "" {
		return "A"
	}
	return letters
}
