package job

import (
	"slices"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	const mptcp, ras, segments = "GODEBUG=multipathtcp=0", "NCCL_RAS_ENABLE=0", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	for _, test := range []struct {
		name string
		Choice
		env  []string
		gpus int
		want []string
		note string
	}{
		{"one GPU", Choice{}, []string{"A=1"}, 1, []string{"A=1", mptcp, ras}, mptcp + " is set"},
		{"several GPUs", Choice{}, []string{mptcp, ras}, 2, []string{mptcp, ras, segments}, segments + " is set"},
		{"left out", Choice{Without: []string{"torch-segments", "go-no-mptcp", "nccl-no-ras"}}, nil, 2, nil, ""},
		{"the user's own", Choice{}, []string{mptcp, ras, "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, 2, []string{mptcp, ras, "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, "you set "},
		{"the user's own, the same", Choice{}, []string{mptcp, ras, segments}, 2, []string{mptcp, ras, segments}, ""},
		{"NCCL, with the library", Choice{Sharing: true}, []string{mptcp, ras, segments}, 2, []string{mptcp, ras, segments, "NCCL_NVLS_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=0"}, "NCCL_NVLS_ENABLE=0 is set"},
		{"what costs speed, asked for", Choice{With: []string{"nccl-no-p2p"}}, []string{mptcp, ras}, 1, []string{mptcp, ras, "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"}, "NCCL_P2P_DISABLE=1 is set"},
	} {
		got, notes := test.Apply(slices.Clone(test.env), test.gpus)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
		if said := strings.Join(notes, "\n"); !strings.Contains(said, test.note) || test.note == "" && said != "" {
			t.Errorf("%s: %q", test.name, said)
		}
	}
	if err := CheckSettings("torch-segments", "nccl-no-p2p"); err != nil {
		t.Error(err)
	}
	if err := CheckSettings("no-such"); err == nil || !strings.Contains(err.Error(), "torch-segments") {
		t.Errorf("%v", err)
	}
}
