package quick

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	named, others := Names("# a comment\n\nTestA # why\n TestB/of two\n-TestC\n")
	if !slices.Equal(named, []string{"TestA", "TestB/of two"}) || !slices.Equal(others, []string{"TestC"}) {
		t.Error(named, others)
	}
	if got, want := Exactly(named...), "^TestA$|^TestB$/^of two$"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := Exactly(), "^$"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
