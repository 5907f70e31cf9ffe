package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPruningKeepsWhatIsNeeded(t *testing.T) {
	const each = 3 << 19 // bytes; a checkpoint has a little more
	for name, c := range map[string]struct {
		pinned, verified, damaged, givenUp []int // of the checkpoints 1 to 5
		policy                             Policy
		want                               string
	}{
		"nothing is verified":              {policy: Policy{Keep: 1}, want: "1 2 3 4 5"},
		"the newest is verified":           {verified: []int{5}, policy: Policy{Keep: 2}, want: "4 5"},
		"keep one":                         {verified: []int{5}, policy: Policy{Keep: 1}, want: "5"},
		"keep all":                         {verified: []int{5}, want: "1 2 3 4 5"},
		"keep more than there are":         {verified: []int{5}, policy: Policy{Keep: 9}, want: "1 2 3 4 5"},
		"only an older one is verified":    {verified: []int{3}, policy: Policy{Keep: 1}, want: "3 4 5"},
		"the oldest is verified":           {verified: []int{1}, policy: Policy{Keep: 1}, want: "1 2 3 4 5"},
		"pinned ones do not count":         {verified: []int{5}, pinned: []int{2, 4}, policy: Policy{Keep: 2}, want: "2 3 4 5"},
		"damaged ones do not count":        {verified: []int{5}, damaged: []int{2, 4}, policy: Policy{Keep: 2}, want: "3 4 5"},
		"damaged ones go with the old":     {verified: []int{5}, damaged: []int{1}, policy: Policy{Keep: 4}, want: "2 3 4 5"},
		"a damaged one is not verified":    {verified: []int{4}, damaged: []int{4}, policy: Policy{Keep: 1}, want: "1 2 3 4 5"},
		"given up ones do not count":       {verified: []int{5}, givenUp: []int{3, 4}, policy: Policy{Keep: 2}, want: "2 3 4 5"},
		"one given up is not verified":     {verified: []int{5}, givenUp: []int{5}, policy: Policy{Keep: 1}, want: "1 2 3 4 5"},
		"bytes":                            {verified: []int{5}, policy: Policy{MaxBytes: 3*each + 1<<20}, want: "3 4 5"},
		"bytes, and the newest is too big": {verified: []int{4}, policy: Policy{MaxBytes: 1}, want: "4 5"},
		"bytes, and a pinned one":          {verified: []int{5}, pinned: []int{1}, policy: Policy{MaxBytes: 3*each + 1<<20}, want: "1 4 5"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, quickDir(t))
			short := map[string]string{}
			for i := 1; i <= 5; i++ {
				short[publish(t, s, i, newMemory(uint64(i), 2)).Name] = string(rune('0' + i))
			}
			for _, i := range c.verified {
				must(t, s.Verify(t.Context(), list(t, s)[i-1], 1, nil))
			}
			for _, i := range c.pinned {
				must(t, s.Pin(nameOf(uint64(i)), true))
			}
			for _, i := range c.givenUp {
				must(t, s.GiveUp(nameOf(uint64(i)), errors.New("criu failed\x1b")))
				if why := list(t, s)[i-1].GivenUp; why != "criu failed?" {
					t.Errorf("it was given up because of %q", why)
				}
			}
			for _, i := range c.damaged {
				must(t, os.Truncate(filepath.Join(s.checkpointDir(nameOf(uint64(i))), recordName), 100))
			}
			foreseen := foresee(t, s, c.policy)
			removed, err := s.Prune(t.Context(), c.policy)
			must(t, err)
			if names(foreseen) != names(removed) {
				t.Errorf("a dry run in a view says %q, and %q were removed", names(foreseen), names(removed))
			}
			var got string
			all := list(t, s)
			for i, c := range all {
				if i > 0 {
					got += " "
				}
				got += short[c.Name]
			}
			if got != c.want || len(all)+len(removed) != 5 {
				t.Errorf("%q remain and %q were removed, want %q", got, names(removed), c.want)
			}
			entries, err := os.ReadDir(s.path(CheckpointsDir))
			must(t, err)
			if len(entries) != len(all) {
				t.Errorf("%d entries for %d checkpoints", len(entries), len(all))
			}
		})
	}
}

func TestAPinnedCheckpointIsNotRemoved(t *testing.T) {
	s := openStore(t, quickDir(t))
	a, b := publish(t, s, 1, newMemory(1, 2)), publish(t, s, 2, newMemory(2, 2))
	must(t, s.Pin(a.Name, true))
	must(t, s.Pin(a.Name, true))
	wantError(t, s.Remove(a.Name), "pinned")
	wantWhole(t, s, "000001 000002")
	s.interrupt = func(step string) error { // a person pins it in the moment in which it is removed
		if step == stepSetAside {
			return os.WriteFile(filepath.Join(s.checkpointDir(partialPrefix+b.Name), pinnedName), nil, 0o600)
		}
		return nil
	}
	wantError(t, s.Remove(b.Name), "pinned")
	wantWhole(t, s, "000001 000002")
	s.interrupt = nil
	must(t, s.Pin(a.Name, false))
	must(t, s.Remove(a.Name))
	wantWhole(t, s, "000002")
	for _, name := range []string{"000001", "", ".", "..", "../../etc", ".partial-000002", "lock", "2"} {
		if err := s.Remove(name); err == nil {
			t.Errorf("removed %q", name)
		}
		if err := s.Pin(name, true); err == nil {
			t.Errorf("pinned %q", name)
		}
		if _, err := s.Checkpoint(name); err == nil {
			t.Errorf("read %q", name)
		}
	}
	if _, err := s.Checkpoint("000009"); !errors.Is(err, errGone) {
		t.Errorf("a checkpoint that is not there: %v", err)
	}
}

func TestAMarkOfAnotherCheckpointDoesNotCount(t *testing.T) {
	s := openStore(t, quickDir(t))
	a, b := publish(t, s, 1, newMemory(1, 2)), publish(t, s, 2, newMemory(2, 2))
	must(t, s.Verify(t.Context(), a, 1, nil))
	must(t, os.Rename(filepath.Join(a.Dir, verifiedName), filepath.Join(b.Dir, verifiedName)))
	for _, c := range list(t, s) {
		if c.Verified {
			t.Errorf("%s passes as verified", c.Name)
		}
	}
}

// foresee returns what a policy would remove.
func foresee(t *testing.T, s *Store, policy Policy) []Checkpoint {
	t.Helper()
	view, err := View(s.dir)
	must(t, err)
	before := names(list(t, s))
	policy.DryRun = true
	foreseen, err := view.Prune(t.Context(), policy)
	must(t, err)
	if after := names(list(t, s)); before != after {
		t.Errorf("a dry run left %q of %q", after, before)
	}
	return foreseen
}

// Remove removes one checkpoint, for the tests. One that is pinned is not removed.
func (s *Store) Remove(name string) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.checkName(name); err != nil {
		return err
	}
	return s.remove(context.Background(), name)
}

// TestWhatStaysForAnUnverifiedCheckpointIsKnown: to prune, somebody has to verify the newest.
func TestWhatStaysForAnUnverifiedCheckpointIsKnown(t *testing.T) {
	all := []Checkpoint{{Name: "1", Verified: true}, {Name: "2", Pinned: true}, {Name: "3", GivenUp: "it failed"}, {Name: "4"}, {Name: "5"}}
	if stay, until := (Policy{Keep: 1}).Unverified(all); !slices.Equal(stay, []string{"1", "4"}) || until != "5" {
		t.Errorf("%v until %s", stay, until)
	}
	for _, policy := range []Policy{{Keep: 3}, {MaxBytes: 1}} {
		if stay, until := policy.Unverified(all); stay != nil || until != "" {
			t.Errorf("%+v: %v until %s", policy, stay, until)
		}
	}
	all[4].Verified = true
	if stay, until := (Policy{Keep: 1}).Unverified(all); stay != nil || until != "" {
		t.Errorf("%v until %s", stay, until)
	}
}
