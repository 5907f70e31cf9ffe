package engine

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"cucriu/internal/core/agent"
)

// sharing is a job whose processes have some parts each, and records who gave and took what.
type sharing struct {
	sync.Mutex
	has          map[*Target]int
	gives, takes int
	got          map[*Target]map[*Target]int
	most         int // parts that were given and not taken
	failing      *Target
}

func share(n, parts int) (*sharing, []*Target) {
	s := &sharing{has: make(map[*Target]int), got: make(map[*Target]map[*Target]int)}
	var all []*Target
	for range n {
		t := new(Target)
		all = append(all, t)
		s.has[t], s.got[t] = parts, make(map[*Target]int)
	}
	return s, all
}

func (s *sharing) give(owner *Target, from uint64) (gift, error) {
	s.Lock()
	defer s.Unlock()
	s.gives++
	parts := min(agent.Batch, s.has[owner]-int(from))
	return gift{owner: owner, parts: slices.Repeat([]int{-1}, parts)}, nil
}

func (s *sharing) take(to *Target, gifts []gift) error {
	s.Lock()
	defer s.Unlock()
	s.takes++
	held := 0
	for _, g := range gifts {
		s.got[to][g.owner] += len(g.parts)
		held += len(g.parts)
	}
	s.most = max(s.most, held)
	if to == s.failing {
		return os.ErrInvalid
	}
	return nil
}

// TestEachSharerGivesOnceAndTakesOnce, however many there are. That there is no more is an answer, too.
func TestEachSharerGivesOnceAndTakesOnce(t *testing.T) {
	for _, n := range []int{2, 8, 70} {
		s, all := share(n, 2)
		if err := exchange(all, all, s.give, s.take); err != nil {
			t.Fatal(err)
		}
		if s.gives > 2*n || s.takes != n {
			t.Errorf("%d processes: given %d times, taken %d times", n, s.gives, s.takes)
		}
		for to, got := range s.got {
			for _, owner := range all {
				if want := s.has[owner]; owner != to && got[owner] != want || owner == to && got[owner] != 0 {
					t.Errorf("%d processes: one has %d parts of another, which has %d", n, got[owner], want)
				}
			}
		}
	}
}

// TestMuchSharedMemoryComesInRounds: this program cannot have any number of descriptors.
func TestMuchSharedMemoryComesInRounds(t *testing.T) {
	s, all := share(3, 1000)
	if err := exchange(all, all[:1], s.give, s.take); err != nil {
		t.Fatal(err)
	}
	if s.got[all[0]][all[1]] != 1000 || s.got[all[0]][all[2]] != 1000 {
		t.Errorf("not all has come: %v", s.got[all[0]])
	}
	if s.most > mostHeld {
		t.Errorf("%d descriptors were held", s.most)
	}
}

func TestNobodyGivesWhereNobodyTakes(t *testing.T) {
	s, all := share(3, 1)
	if err := exchange(all, nil, s.give, s.take); err != nil || s.gives > 0 {
		t.Errorf("given %d times: %v", s.gives, err)
	}
	s.failing = all[1]
	if err := exchange(all, all, s.give, s.take); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("one has failed: %v", err)
	}
}
