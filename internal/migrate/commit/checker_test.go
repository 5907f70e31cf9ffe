package commit

import (
	"errors"
	"fmt"
	"strings"
)

// result is what the checker found: a violation with the shortest way to it, or none.
type result struct {
	worlds, moves int
	broken        string
	trace         []string
}

func (r result) String() string {
	return fmt.Sprintf("%s\n\t%s", r.broken, strings.Join(r.trace, "\n\t"))
}

// explorer searches breadth first.
type explorer struct {
	worlds []world
	from   []int32     // the world that each was first reached from
	by     [][2]string // and how
	index  map[world]int32
	count  int        // of moves
	back   [][2]int32 // moves that need no luck: to, from
}

// check explores all worlds that can be reached, without a bound on crashes, losses, repetitions
// and recovers. Three things must hold. Each world is safe. An event that cannot happen does not.
// And from each world the good end can be reached by moves that need no luck, and is then never
// left, so that it is reached whenever crashes and losses end and recover is run.
func (m model) check() result {
	x := explorer{index: make(map[world]int32)}
	x.add(start().sorted(), -1, [2]string{"start"})
	var moves []move
	for at := 0; at < len(x.worlds); at++ {
		w := x.worlds[at]
		if broken := w.unsafe(); broken != "" {
			return x.result(at, broken)
		}
		moves = m.moves(w, moves[:0])
		for _, v := range moves {
			if w.expects(v.err) {
				continue
			}
			x.count++
			if v.err != nil {
				return x.result(at, v.where+": "+v.what+": "+v.err.Error())
			}
			if w.good() && !v.after.good() {
				return x.result(x.add(v.after, int32(at), [2]string{v.where, v.what}), "the good end was left")
			}
			to := x.add(v.after, int32(at), [2]string{v.where, v.what})
			if !v.fault && (!v.byPerson || w.source.destroyed) {
				x.back = append(x.back, [2]int32{int32(to), int32(at)})
			}
		}
	}
	if stuck := x.stuck(); stuck >= 0 {
		return x.result(stuck, "no way to the good end from "+x.worlds[stuck].String())
	}
	return x.result(0, "")
}

func (x *explorer) add(w world, from int32, by [2]string) int {
	if known, there := x.index[w]; there {
		return int(known)
	}
	n := len(x.worlds)
	x.index[w] = int32(n)
	x.worlds, x.from, x.by = append(x.worlds, w), append(x.from, from), append(x.by, by)
	return n
}

func (x *explorer) result(at int, broken string) result {
	r := result{worlds: len(x.worlds), moves: x.count, broken: broken}
	for i := int32(at); i >= 0; i = x.from[i] {
		r.trace = append([]string{strings.Join(x.by[i][:], ": ")}, r.trace...)
	}
	return r
}

// stuck returns the first world from which the good end cannot be reached, -1 if there is none.
func (x *explorer) stuck() int {
	first := make([]int32, len(x.worlds)+1) // where the moves to a world begin in from
	for _, e := range x.back {
		first[e[0]+1]++
	}
	for i := range x.worlds {
		first[i+1] += first[i]
	}
	from, next := make([]int32, len(x.back)), append([]int32(nil), first...)
	for _, e := range x.back {
		from[next[e[0]]] = e[1]
		next[e[0]]++
	}
	ends := make([]bool, len(x.worlds))
	var todo []int32
	reach := func(i int32) {
		if !ends[i] {
			ends[i] = true
			todo = append(todo, i)
		}
	}
	for i, w := range x.worlds {
		if w.good() {
			reach(int32(i))
		}
	}
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, f := range from[first[at]:first[at+1]] {
			reach(f)
		}
	}
	for i := range ends {
		if !ends[i] {
			return i
		}
	}
	return -1
}

// unsafe says which promise is broken, if one is.
func (w world) unsafe() string {
	s, d := &w.source, &w.destination
	switch {
	case s.copy == runs && d.copy == runs:
		return "two copies run"
	case d.copy == runs && d.state != goes:
		return "the destination runs a copy and has not written down that it may"
	case d.state == goes && s.copy != none:
		return "the destination may run its copy, and the source still has one"
	case d.state == goes && w.stale && !s.destroyed:
		return "the destination may run its copy, and the source's went on after it was made"
	case s.state == end && s.copy == runs:
		return "the source runs a copy that it has given up"
	case s.destroyed && (d.state == promised || d.state == goes) && d.copy == none && !d.destroyed:
		return "the destination has ended a copy that it promised or owned"
	case s.destroyed || d.destroyed && s.state == end:
		return "" // the copy that owned the job may have been on the destroyed host
	case s.state != end && s.copy == none:
		return "no copy: the source has ended its own and may yet decide to go on with it"
	case s.state == end && d.copy == none:
		return "no copy: the source has given its own up, and the destination has none"
	case s.state == end && d.state != promised && d.state != goes:
		return "no copy that will run: the source has given its own up, and the destination may, too"
	}
	return ""
}

// good reports whether the migration is over: one copy runs, the other is gone, and both records
// are closed. On a destroyed host there is nothing to be had.
func (w world) good() bool {
	s, d := &w.source, &w.destination
	here := s.state == back && s.copy == runs && s.closed
	there := d.state == goes && d.copy == runs && d.closed
	switch {
	case s.destroyed && d.destroyed:
		return true
	case s.destroyed:
		return there || d.state == drops && d.copy == none && d.closed
	case d.destroyed:
		return here || s.state == end && s.copy == none
	}
	return here && d.state == drops && d.copy == none && d.closed ||
		there && s.state == end && s.copy == none && s.closed
}

// expects reports whether an error may come: an abort that was said before the source's host was
// destroyed and a person took the job.
func (w world) expects(err error) bool {
	var impossible *ImpossibleError
	return errors.As(err, &impossible) && impossible.Event == Abort && w.destination.state == goes && w.source.destroyed
}

func (w world) String() string {
	return fmt.Sprintf("source: %v; destination: %v; under way: %06b", w.source, w.destination, w.network)
}

func (h host) String() string {
	text := vocabulary[h.state] + ", " + [...]string{"no copy", "copy held", "copy runs"}[h.copy]
	if h.closed {
		text += ", closed"
	}
	return text
}
