package job

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/cudackpt"
)

func host(t *testing.T) []cudackpt.GPU {
	t.Helper()
	var gpus []cudackpt.GPU
	for i, text := range []string{"GPU-00000000-0000-0000-0000-0000000000a0", "GPU-00000000-0000-0000-0000-0000000000b1", "GPU-10000000-0000-0000-0000-0000000000c2"} {
		uuid, err := cudackpt.ParseUUID(text)
		if err != nil {
			t.Fatal(err)
		}
		gpus = append(gpus, cudackpt.GPU{UUID: uuid, Minor: i})
	}
	return gpus
}

func TestVisibleDevicesAreReadAsCUDADoes(t *testing.T) {
	for value, want := range map[string][]int{
		"":        nil,
		"0":       {0},
		"2,0":     {2, 0},
		" 1 , 2 ": {1, 2},
		"0,7,1":   {0}, // what is wrong ends the list
		"-1":      nil,
		"1,1":     {1},
		"GPU-1":   {2},
		"GPU-00":  nil, // it must be unique
		"none":    nil,
		"2,GPU-00000000-0000-0000-0000-0000000000a": {2, 0},
	} {
		got, err := chooseGPUs(host(t), value)
		if err != nil {
			t.Errorf("%q: %v", value, err)
		}
		var minors []int
		for _, gpu := range got {
			minors = append(minors, gpu.Minor)
		}
		if !slices.Equal(minors, want) {
			t.Errorf("%q is %v, want %v", value, minors, want)
		}
	}
	if _, err := chooseGPUs(host(t), "MIG-1"); err == nil {
		t.Error("a MIG instance was taken")
	}
}

func TestGPUsAreRenumberedWhereOnlyTheyAreVisible(t *testing.T) {
	all := host(t)
	g := GPUs{Visible: all[1:], order: []cudackpt.GPU{all[2], all[1]}}
	got := g.Renumber([]string{"A=1", "CUDA_VISIBLE_DEVICES=2,1", "B=2"})
	if diff := cmp.Diff([]string{"A=1", "B=2", "CUDA_VISIBLE_DEVICES=1,0"}, got); diff != "" {
		t.Error(diff)
	}
	if got := g.Renumber([]string{"A=1"}); len(got) != 1 {
		t.Errorf("it was set: %v", got)
	}
}

func TestOnlyTheVariableIsBlamedForWhatItHides(t *testing.T) {
	all := host(t)
	for name, test := range map[string]struct {
		gpus    GPUs
		refused bool
	}{
		"enough":                  {GPUs{Visible: all[1:], order: all[1:], Hidden: []string{"0"}}, false},
		"too few":                 {GPUs{Visible: all[:1], order: all[:1], Hidden: []string{"1", "2"}}, true},
		"none":                    {GPUs{Hidden: []string{"0", "1", "2"}}, true},
		"hidden by control group": {GPUs{Visible: all[:1], order: all, Hidden: []string{"1", "2"}}, false},
		"a small host":            {GPUs{Visible: all[:1], order: all[:1]}, false},
		"no driver":               {GPUs{}, false},
	} {
		if err := test.gpus.Require(2); (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
