package jobs

import (
	"slices"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	const mptcp, segments = "GODEBUG=multipathtcp=0", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	for _, test := range []struct {
		name string
		chosen
		env  []string
		gpus int
		want []string
		note string
	}{
		{"one GPU", chosen{}, []string{"A=1"}, 1, []string{"A=1", mptcp}, mptcp + " is set"},
		{"several GPUs", chosen{}, []string{mptcp}, 2, []string{mptcp, segments}, segments + " is set"},
		{"left out", chosen{without: []string{"torch-segments", "go-no-mptcp"}}, nil, 2, nil, ""},
		{"the user's own", chosen{}, []string{mptcp, "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, 2, []string{mptcp, "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, "is yours"},
		{"the user's own, the same", chosen{}, []string{mptcp, segments}, 2, []string{mptcp, segments}, ""},
		{"what costs speed, asked for", chosen{with: []string{"nccl-no-p2p"}}, []string{mptcp}, 1, []string{mptcp, "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"}, "NCCL_P2P_DISABLE=1 is set"},
	} {
		got, notes := test.apply(slices.Clone(test.env), test.gpus)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if said := strings.Join(notes, "\n"); !strings.Contains(said, test.note) || test.note == "" && said != "" {
			t.Errorf("%s: %q", test.name, said)
		}
	}
	if err := checkSettings("torch-segments", "nccl-no-p2p"); err != nil {
		t.Error(err)
	}
	if err := checkSettings("no-such"); err == nil || !strings.Contains(err.Error(), "torch-segments") {
		t.Errorf("%v", err)
	}
}

func TestPIDsForTheRestoreAreAGap(t *testing.T) {
	for _, test := range []struct {
		used       []int
		most, want int
	}{
		{nil, 32768, 1000},
		{[]int{1000, 1001, 1002}, 32768, 1003},
		{[]int{1000, 3000, 5097}, 32768, 5098},
		{[]int{1000, 3000, 7097}, 32768, 3001},
		{[]int{6000, 1000}, 32768, 1001}, // they need not be in order
		{[]int{4000}, 8000, 0},
	} {
		got, err := gapIn(test.used, firstPID, test.most)
		if got != test.want || (err != nil) != (test.want == 0) {
			t.Errorf("%v below %d: %d, %v; want %d", test.used, test.most, got, err, test.want)
		}
	}
}
