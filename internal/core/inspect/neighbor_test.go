package inspect

import (
	"context"
	"errors"
	"slices"
	"testing"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
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

// TestNeighborFindings: whoever uses several GPUs is asked about, be it one process or several.
func TestNeighborFindings(t *testing.T) {
	first, second, third := cudackpt.UUID{1}, cudackpt.UUID{2}, cudackpt.UUID{3}
	process := func(pid int, gpus ...cudackpt.UUID) Process {
		listed := make(map[cudackpt.UUID]uint64)
		for _, gpu := range gpus {
			listed[gpu] = 1 << 20
		}
		return Process{Ident: proc.Ident{PID: pid}, Listed: listed}
	}
	const other = 13 // uses the first GPU
	for _, c := range []struct {
		name  string
		job   []Process
		found bool
	}{
		{"no GPU", []Process{process(10)}, false},
		{"one process on one GPU", []Process{process(10, first)}, false},
		{"two processes on one GPU", []Process{process(10, first), process(11, first)}, false},
		{"one process on two GPUs", []Process{process(10, first, second)}, true},
		{"one process on two other GPUs", []Process{process(10, second, third)}, false},
		{"one process on all, and one on one", []Process{process(10, first, second), process(11, second)}, true},
		{"two ranks", []Process{process(10, first), process(11, second)}, true},
		{"two ranks on other GPUs", []Process{process(10, second), process(11, third)}, false},
		{"the other program is of the job", []Process{process(10, first, second), process(other)}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := neighborFindings(t.Context(), c.job, func(_ context.Context, gpu cudackpt.UUID) ([]int, error) {
				var pids []int
				for _, p := range append(slices.Clone(c.job), process(other, first)) {
					if _, uses := p.Listed[gpu]; uses {
						pids = append(pids, p.PID)
					}
				}
				return pids, nil
			})
			if c.found != found.Has(preflight.FindingGPUInUse) || len(found) > 1 {
				t.Errorf("found %+v, want %v", found, c.found)
			}
		})
	}
}
