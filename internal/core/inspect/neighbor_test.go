package inspect

import (
	"errors"
	"slices"
	"testing"

	"cucriu/internal/kit/proc"
)

// TestNeighbor: a program outside the job that has a context on its GPU is found, one that is ending is waited for,
// and what NVML does not tell is no neighbor.
func TestNeighbor(t *testing.T) {
	job := []Process{{Ident: proc.Ident{PID: 10}}, {Ident: proc.Ident{PID: 11}}}
	for _, c := range []struct {
		name   string
		lists  [][]int // what the GPU lists, each time that it is asked
		fails  bool
		ending []int
		pid    int // 0: none is found
		asked  int
	}{
		{"the job alone", [][]int{{10, 11}}, false, nil, 0, 1},
		{"nobody", [][]int{nil}, false, nil, 0, 1},
		{"another program", [][]int{{10, 12}}, false, nil, 12, 1},
		{"one that ends", [][]int{{10, 12}, {12}, {10}}, false, []int{12}, 0, 3},
		{"one that ends, beside one that does not", [][]int{{12, 13}}, false, []int{12}, 13, 1},
		{"one that ends, and one that comes meanwhile", [][]int{{12}, {13}}, false, []int{12}, 13, 2},
		{"no answer", [][]int{{12}}, true, nil, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			contexts := func() ([]int, error) {
				asked++
				if c.fails {
					return nil, errors.New("NVML does not answer")
				}
				return slices.Clone(c.lists[asked-1]), nil
			}
			ending := func(pid int) bool { return slices.Contains(c.ending, pid) }
			pid, found := neighbor(t.Context(), job, contexts, ending)
			if found != (c.pid != 0) || pid != c.pid || asked != c.asked {
				t.Errorf("neighbor %d, %v, asked %d times; want %d, %v, %d times", pid, found, asked, c.pid, c.pid != 0, c.asked)
			}
		})
	}
}
