package config

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/internal/gpumap"
)

const examplePath = "../../configs/config.yaml"

// commentedRule matches a rule that the example shows but does not apply. commentedHost matches
// such a line of a host.
var (
	commentedRule = regexp.MustCompile(`(?m)^  #  - \{from`)
	commentedHost = regexp.MustCompile(`(?m)^#((  )+(gpu-b:|map:|- \{from))`)
)

// activate uncomments the rules that the example shows.
func activate(example []byte) []byte {
	example = commentedRule.ReplaceAll(example, []byte("    - {from"))
	return commentedHost.ReplaceAll(example, []byte("$1"))
}

func TestExampleStatesTheDefaults(t *testing.T) {
	data, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(examplePath, data)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File = examplePath
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the example says that its values are the defaults (-default +example):\n%s", diff)
	}
	// If the example left out a field, its default would still pass the comparison.
	for _, name := range []string{
		"unmapped: fill", "hosts:", "library: libcuda.so.1", "root: /", "timeout: 10s", "try: 1s", "checkpoint:", "restore:",
		"timeout: 10m", "pages: fast", "compress: none", "sync: true", "prefault: true", "on_failure: kill", "force: []", "level: info", "format: text", `file: ""`,
	} {
		if !bytes.Contains(data, []byte("  "+name)) && !bytes.Contains(data, []byte("\n"+name)) {
			t.Errorf("the example does not show %q", name)
		}
	}
}

func TestRulesThatTheExampleShowsCanBeUsed(t *testing.T) {
	data, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(examplePath, activate(data))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.File = examplePath
	want.GPUs.Map = []gpumap.Rule{
		{From: byUUID(t, uuidA), To: byUUID(t, uuidB)},
		{From: gpumap.Selector{Index: new(1)}, To: gpumap.Selector{PCI: "0000:41:00.0"}},
	}
	want.Hosts = map[string]Host{"gpu-b": {Map: []gpumap.Rule{{From: gpumap.Selector{Index: new(0)}, To: gpumap.Selector{PCI: "0000:41:00.0"}}}}}
	if len(got.MapFor("gpu-b")) == 1 {
		got.MapFor("gpu-b")[0].Line = 0
	}
	for i := range got.GPUs.Map {
		line := strings.Split(string(data), "\n")[got.GPUs.Map[i].Line-1]
		if !strings.Contains(line, "- {from") {
			t.Errorf("rule %d is said to stand on the line %q", i, line)
		}
		got.GPUs.Map[i].Line = 0
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Both files for CRIU name the same hook and the same folder of plugins.
func TestFilesForCRIUAgree(t *testing.T) {
	lines := func(name string) (active []string) {
		data, err := os.ReadFile("../../configs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "#") {
				active = append(active, line)
			}
		}
		return active
	}
	want := []string{"action-script /usr/libexec/cucriu/cucriu-hook", "libdir /usr/lib/cucriu/criu-plugins"}
	for _, name := range []string{"criu.conf", "runc.conf"} {
		if diff := cmp.Diff(want, lines(name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
