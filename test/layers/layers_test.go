// Package layers checks the order in which packages may import each other.
package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers lists the packages from the top down. A package may import only packages in layers
// below its own, so that a change affects only what is above it.
var layers = [][]string{
	{"cmd/cucriu", "cmd/cucriu-hook", "cmd/cuda-checkpoint", "test/bench", "test/bench/serial-hook", "test/conformance", "test/gocriu"},
	{"internal/testenv/hosts"},
	{"internal/testenv"},
	{"internal/migrate"},
	{"internal/jobs", "internal/migrate/delta"},
	{"internal/jobs/inside"},
	{"internal/jobs/files", "internal/jobs/sandbox", "internal/migrate/prepare"},
	{"internal/jobs/job"},
	{"hooks/checkpoint"},
	{"hooks"},
	{"internal/stages"},
	{"internal/watch"},
	{"internal/engine"},
	{"internal/session"},
	{"internal/journal"},
	{"internal/jobs/store", "internal/inspect"},
	{"internal/gpumap"},
	{"hooks/config"},
	{"hooks/image"},
	{"internal/imagedir"},
	{"internal/agent", "internal/migrate/wire", "hooks/preflight", "hooks/timeline"},
	{
		"cudackpt", "criuutil", "internal/criuimage", "internal/inject", "internal/inventory", "internal/netlock",
		"internal/nvrm", "internal/pages", "internal/failpoint",
	},
	{"hooks/preflight", "internal/first", "internal/guest", "internal/pagemap", "internal/proc", "internal/records", "internal/rundir"},
	{"internal/durable"},
	{"internal/fault", "internal/jobs/life", "internal/migrate/commit", "internal/migrate/predict", "internal/jsonlines", "internal/testenv/quick", "internal/testenv/reaper", "internal/self", "internal/units", "internal/version"},
	{"internal/drivers", "internal/quote"},
}

func layerOf(name string) int {
	return slices.IndexFunc(layers, func(layer []string) bool { return slices.Contains(layer, name) })
}

type goPackage struct {
	ImportPath string
	GoFiles    []string
	Imports    []string
}

// packages returns the packages of this module that contain more than tests.
func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,GoFiles,Imports", "-tags", "failpoint", "cucriu/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
}

func TestImportsRunDownwardsOnly(t *testing.T) {
	found := make(map[string]bool)
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "cucriu/")
		found[name] = true
		layer := layerOf(name)
		if layer < 0 {
			t.Errorf("%s is in no layer: give it one", name)
			continue
		}
		for _, imported := range p.Imports {
			below, ours := strings.CutPrefix(imported, "cucriu/")
			if ours && layerOf(below) <= layer {
				t.Errorf("%s imports %s, which is not below it", name, below)
			}
		}
	}
	for _, layer := range layers {
		for _, name := range layer {
			if !found[name] {
				t.Errorf("%s is in a layer, and there is no such package", name)
			}
		}
	}
}

// TestCUDAAndCRIUDoNotKnowEachOther: each half can be used without the other.
func TestCUDAAndCRIUDoNotKnowEachOther(t *testing.T) {
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			ofCUDA := strings.HasPrefix(p.ImportPath, "cucriu/cudackpt") && strings.HasPrefix(imported, "cucriu/criuutil")
			ofCRIU := strings.HasPrefix(p.ImportPath, "cucriu/criuutil") && strings.HasPrefix(imported, "cucriu/cudackpt")
			if ofCUDA || ofCRIU {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}
