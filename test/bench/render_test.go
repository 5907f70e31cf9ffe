package main

import (
	"strings"
	"testing"
)

// fixed returns the results of two cases. The second case lacks a mode.
func fixed() Results {
	var rs Results
	small, large := load{4, 256 * mib}, load{1, 16 * gib}
	rs.add(large, modeSerial, Run{DumpSeconds: 20, RestoreSeconds: 10, BytesWritten: 16 * gib})
	rs.add(large, modeHook, Run{DumpSeconds: 16, RestoreSeconds: 8, BytesWritten: 16 * gib})
	for _, seconds := range []float64{9, 1, 2} { // the median is 2
		rs.add(small, modeHook, Run{DumpSeconds: seconds, RestoreSeconds: seconds / 2, BytesWritten: gib, PreDumpSeconds: 0.5})
	}
	rs.add(small, modeSerial, Run{DumpSeconds: 4, RestoreSeconds: 3, BytesWritten: gib})
	rs.add(small, modeFastlane, Run{DumpSeconds: 0.5, RestoreSeconds: 0.25, BytesWritten: gib})
	rs.sort([]load{small, large})
	return rs
}

func TestTheTableShowsRatiosOfTheMedians(t *testing.T) {
	r := &report{machine: machine{{"criu", "4.2.1"}}, skipped: []string{"1 × 64 GiB is left out: it needs a larger machine"}, results: fixed()}
	text, err := r.markdown()
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") {
			rows = append(rows, strings.TrimSpace(line))
		}
	}
	for i, want := range []string{
		"| case | mode | dump |",
		"| 4 × 256 MiB | serial | 4.000 s | 1.00× | 3.000 s | 1.00× | 1024 MiB |",
		"| 4 × 256 MiB | hook | 2.000 s | 2.00× | 1.000 s | 3.00× | 1024 MiB |",
		"| 4 × 256 MiB | fastlane | 0.500 s | 8.00× | 0.250 s | 12.00× | 1024 MiB |",
		"| 1 × 16 GiB | serial | 20.000 s | 1.00× | 10.000 s | 1.00× | 16384 MiB |",
		"| 1 × 16 GiB | hook | 16.000 s | 1.25× | 8.000 s | 1.25× | 16384 MiB |",
	} {
		if i >= len(rows) || !strings.HasPrefix(rows[i], want) {
			t.Fatalf("row %d is not %q:\n%s", i, want, text)
		}
	}
	for _, want := range []string{"- criu: 4.2.1\n", "- 1 × 64 GiB is left out", "between 1.500 s and 13.500 s"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in the report:\n%s", want, text)
		}
	}
}

func TestCasesAreReadAsTheyAreWritten(t *testing.T) {
	loads, err := parseLoads("1x16GiB,4x256MiB,8x1536MiB")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []load{{1, 16 * gib}, {4, 256 * mib}, {8, 1536 * mib}} {
		if loads[i] != want {
			t.Errorf("case %d is %v, want %v", i, loads[i], want)
		}
	}
	for _, text := range []string{"1", "0x1GiB", "1x1GB", "1x1GiB,", ",", "1x1MiB", "4x256MiB "} {
		t.Run(text, func(t *testing.T) {
			if loads, err := parseLoads(text); err == nil {
				t.Errorf("%q is read as %v", text, loads)
			}
		})
	}
}

func TestALoadThatDoesNotFitIsLeftOut(t *testing.T) {
	for _, test := range []struct {
		name string
		room room
		load load
		fits bool
	}{
		{"memory for the GPU and its staging", room{simulated: true, memory: 3 * gib, disk: gib * 2}, load{1, gib}, true},
		{"simulated GPUs take memory too", room{simulated: true, memory: 2 * gib, disk: gib * 2}, load{1, gib}, false},
		{"so do images on a tmpfs", room{simulated: true, memory: 3 * gib, disk: gib * 2, diskIsRAM: true}, load{1, gib}, false},
		{"disk", room{simulated: true, memory: 8 * gib, disk: gib}, load{1, gib}, false},
		{"two GPUs hold two processes each", room{memory: 64 * gib, disk: 64 * gib, gpuMemory: []int64{18 * gib, 18 * gib}}, load{4, 8 * gib}, true},
		{"one GPU holds the third", room{memory: 64 * gib, disk: 64 * gib, gpuMemory: []int64{18 * gib, 18 * gib}}, load{3, 10 * gib}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if why := test.room.misses(test.load); (why == "") != test.fits {
				t.Errorf("%s: %q", test.name, why)
			}
		})
	}
}

func TestTheOrderOfTheModesRotates(t *testing.T) {
	opts := options{modes: allModes()}
	first := make(map[string]int)
	for repetition := range 3 {
		first[opts.modesOf(repetition)[0]]++
	}
	if len(first) != 3 {
		t.Errorf("first were %v", first)
	}
}
