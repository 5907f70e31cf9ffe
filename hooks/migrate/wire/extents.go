package wire

import (
	"cmp"
	"slices"
)

// extent is a part of a file, end not included.
type extent struct{ start, end int64 }

// extents are the parts of a file that are there: sorted, and apart from each other.
type extents []extent

// touching returns which extents overlap or touch e: those from first up to, not including, last.
func (x extents) touching(e extent) (first, last int) {
	first, _ = slices.BinarySearchFunc(x, e.start, func(o extent, start int64) int { return cmp.Compare(o.end, start) })
	for last = first; last < len(x) && x[last].start <= e.end; last++ {
	}
	return first, last
}

// missing returns how many bytes of e are not there.
func (x extents) missing(e extent) int64 {
	n := e.end - e.start
	first, last := x.touching(e)
	for _, o := range x[first:last] {
		n -= max(0, min(o.end, e.end)-max(o.start, e.start))
	}
	return n
}

// add adds e.
func (x *extents) add(e extent) {
	first, last := x.touching(e)
	if first < last {
		e.start = min(e.start, (*x)[first].start)
		e.end = max(e.end, (*x)[last-1].end)
	}
	*x = slices.Replace(*x, first, last, e)
}

// end returns where the last one ends.
func (x extents) end() int64 {
	if len(x) == 0 {
		return 0
	}
	return x[len(x)-1].end
}
