package job

import (
	"slices"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	const mptcp, segments = "GODEBUG=multipathtcp=0", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	for _, test := range []struct {
		name string
		Choice
		env  []string
		gpus int
		want []string
		note string
	}{
		{"one GPU", Choice{}, []string{"A=1"}, 1, []string{"A=1", mptcp}, mptcp + " is set"},
		{"several GPUs", Choice{}, []string{mptcp}, 2, []string{mptcp, segments}, segments + " is set"},
		{"left out", Choice{Without: []string{"torch-segments", "go-no-mptcp"}}, nil, 2, nil, ""},
		{"the user's own", Choice{}, []string{mptcp, "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, 2, []string{mptcp, "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, "you set "},
		{"the user's own, the same", Choice{}, []string{mptcp, segments}, 2, []string{mptcp, segments}, ""},
		{"NCCL, with the library", Choice{Sharing: true}, []string{mptcp, segments}, 2, []string{mptcp, segments, "NCCL_NVLS_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=0"}, "NCCL_NVLS_ENABLE=0 is set"},
		{"what costs speed, asked for", Choice{With: []string{"nccl-no-p2p"}}, []string{mptcp}, 1, []string{mptcp, "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"}, "NCCL_P2P_DISABLE=1 is set"},
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
