package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"
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
	var shown map[string]any
	if err := yaml.Unmarshal(data, &shown); err != nil {
		t.Fatal(err)
	}
	for _, path := range fields(reflect.TypeFor[Config](), "") {
		if path == "file" || path == "run_dir" { // not set in the file
			continue
		}
		var at any = shown
		for name := range strings.SplitSeq(path, ".") {
			section, _ := at.(map[string]any)
			value, there := section[name]
			if at = value; !there {
				t.Errorf("the example does not show %s", path)
				break
			}
		}
	}
}

// fields returns the fields of a section of the configuration, as the file names them.
func fields(section reflect.Type, prefix string) (paths []string) {
	for i := range section.NumField() {
		field := section.Field(i)
		path := prefix + strings.ToLower(wordStart.ReplaceAllString(field.Name, "${1}_$2"))
		if field.Type.Kind() == reflect.Struct {
			paths = append(paths, fields(field.Type, path+".")...)
		} else {
			paths = append(paths, path)
		}
	}
	return paths
}

var wordStart = regexp.MustCompile(`([a-z])([A-Z])`)

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
	want.GPUs.Map = []Rule{
		{From: byUUID(t, uuidA), To: byUUID(t, uuidB)},
		{From: Selector{Index: new(1)}, To: Selector{PCI: "0000:41:00.0"}},
	}
	want.Hosts = map[string]Host{"gpu-b": {Map: []Rule{{From: Selector{Index: new(0)}, To: Selector{PCI: "0000:41:00.0"}}}}}
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
