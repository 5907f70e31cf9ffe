package main

import (
	"strings"
	"testing"

	"cucriu/cudackpt"
)

func TestATableWrapsItsLastColumnAndWhatIsBelow(t *testing.T) {
	var out strings.Builder
	table := newTable("A", "TEXT")
	table.width = 40
	table.row("long cell", "words that do not fit into one line")
	table.below("/a/path/that/is/longer/than/the/table/is/wide and words that follow")
	table.row("b", "")
	table.write(&out)
	want := `A          TEXT
long cell  words that do not fit into one
           line
    /a/path/that/is/longer/than/the/table/is/wide
    and words that follow
b
`
	if out.String() != want {
		t.Errorf("the table is\n%swant\n%s", out.String(), want)
	}
}

func TestGPUsAreNamedByTheirIndexes(t *testing.T) {
	var gpus []cudackpt.GPU
	for i := range 12 {
		gpus = append(gpus, cudackpt.GPU{UUID: cudackpt.UUID{byte(i + 1)}})
	}
	index := indexOf(gpus)
	unknown := cudackpt.UUID{99}
	for _, test := range []struct {
		want string
		gpus []int // -1 is a GPU that has no index
	}{
		{"", nil},
		{"0", []int{0}},
		{"0-1", []int{1, 0}},
		{"0,2-4,10", []int{2, 3, 10, 4, 0}},
		{"9-11", []int{9, 10, 11}},
		{"3,?", []int{-1, 3}},
	} {
		var uuids []cudackpt.UUID
		for _, i := range test.gpus {
			if i < 0 {
				uuids = append(uuids, unknown)
			} else {
				uuids = append(uuids, gpus[i].UUID)
			}
		}
		if got := index.names(uuids); got != test.want {
			t.Errorf("%v is %q, want %q", test.gpus, got, test.want)
		}
	}
	held := map[cudackpt.UUID]uint64{gpus[10].UUID: 3 << 20, gpus[2].UUID: 4 << 20}
	if got, want := index.memory(held), "7 MiB on 2,10"; got != want {
		t.Errorf("memory is %q, want %q", got, want)
	}
	if got, want := index.details(held), "4 MiB on 2, "+gpus[2].UUID.String()+"\n3 MiB on 10, "+gpus[10].UUID.String(); got != want {
		t.Errorf("details are %q, want %q", got, want)
	}
	held[unknown] = cudackpt.UnknownMemory
	if got, want := index.memory(held), "? on 2,10,?"; got != want {
		t.Errorf("memory is %q, want %q", got, want)
	}
}

func TestAsManyPIDsAsFit(t *testing.T) {
	for want, pids := range map[string][]int{
		"-":                  nil,
		"7":                  {7},
		"7,8,9":              {7, 8, 9},
		"4194300,4194301 +1": {4194300, 4194301, 4194302},
	} {
		if got := somePIDs(pids); got != want {
			t.Errorf("%v is %q, want %q", pids, got, want)
		}
	}
}
