package twice

import (
	"errors"
	"testing"
)

const one, other = Job("one"), Job("other")

var all = []Seen{Starting, Kept, Busy, Elsewhere, Unknown, Left, Undecided, PIDsTaken}

// starts are all starts as a job.
func starts(as Job) (all []Start) {
	for n := range 8 {
		all = append(all, Start{As: as, Supervised: n&1 != 0, Takeover: n&2 != 0, OwnPIDs: n&4 != 0})
	}
	return all
}

// TestAJobNeverRunsTwice: of each fact, which starts of the job there may be, out of all, and of another job.
func TestAJobNeverRunsTwice(t *testing.T) {
	always, never := func(Start) bool { return true }, func(Start) bool { return false }
	ownPIDs := func(s Start) bool { return s.OwnPIDs }
	takeover := func(s Start) bool { return s.Takeover }
	for seen, may := range map[Seen]struct{ same, another func(Start) bool }{
		Starting:  {never, always},
		Kept:      {func(s Start) bool { return s.Supervised }, always},
		Busy:      {never, always},
		Elsewhere: {takeover, always},
		Unknown:   {takeover, always},
		Left:      {never, always},
		Undecided: {never, always},
		PIDsTaken: {ownPIDs, ownPIDs},
	} {
		for as, want := range map[Job]func(Start) bool{one: may.same, "": may.same, other: may.another} {
			for _, s := range starts(as) {
				err := May(s, Fact{seen, one})
				if (err == nil) != want(s) {
					t.Errorf("%q of %q: start %+v: %v", seen, one, s, err)
				}
				if of := new(Error); err != nil && (!errors.As(err, &of) || of.Fact != Fact{seen, one}) {
					t.Errorf("%q: refused for %v", seen, err)
				}
			}
		}
	}
}

// TestOneFactIsEnough: of two, about any jobs, the first that forbids the start is named, and none makes up for it.
func TestOneFactIsEnough(t *testing.T) {
	var facts []Fact
	for _, seen := range all {
		facts = append(facts, Fact{seen, one}, Fact{seen, other})
	}
	for _, as := range []Job{"", one, other} {
		for _, s := range starts(as) {
			if May(s) != nil {
				t.Errorf("nothing was seen: start %+v is refused", s)
			}
			for _, a := range facts {
				for _, b := range facts {
					want := May(s, a)
					if want == nil {
						want = May(s, b)
					}
					got := May(s, a, b)
					if (got == nil) != (want == nil) || got != nil && got.Error() != want.Error() {
						t.Errorf("%+v, %+v: start %+v: %v, want %v", a, b, s, got, want)
					}
				}
			}
		}
	}
}

// TestOneImageStartsManyJobs: whatever becomes of the job that it was made of. Each of them is a job like any other.
func TestOneImageStartsManyJobs(t *testing.T) {
	first, second := Long("/jobs/first"), Long("/jobs/second")
	for _, of := range []Job{Dumped("sha256:00"), Long("/jobs/original")} {
		var facts []Fact
		for _, seen := range all {
			facts = append(facts, Fact{seen, of}, Fact{seen, first})
		}
		s := Start{As: second, OwnPIDs: true}
		if err := May(s, facts...); err != nil {
			t.Errorf("a second job from an image of %s: %v", of, err)
		}
		for _, seen := range []Seen{Starting, Kept, Busy, Elsewhere, Unknown, Left, Undecided} {
			if May(s, append(facts, Fact{seen, second})...) == nil {
				t.Errorf("%s runs twice: %q", second, seen)
			}
		}
		if May(Start{As: second}, facts...) == nil {
			t.Error("two jobs have the same pids")
		}
	}
}
