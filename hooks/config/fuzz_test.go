package config

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever the bytes are, the result is a valid configuration, or an error that names the file.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile(examplePath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add(activate(example))
	for _, seed := range []string{
		"", "---\n", "version: 1", "version: 1\n---\nversion: 1\n", "version: &v 1\nlock: {try: *v}\n",
		"version: 1\nlock: &l {try: *l}\n", "version: 1\n<<: {log: {level: warn}}\n",
		"version: 1\ngpus: {map: [{from: {index: 0}, to: {pci: 41:00.0}}]}\n",
		"version: 1\nhosts: {b: {map: [{from: {index: 0}, to: {pci: 41:00.0}}]}, &h c: *h}\n",
		"version: 1\ngpus: {map: &m [*m]}\n", "? {a: b}\n: c\n", "version: !!int 1\n", "\xff\xfe", "version: 1\ndriver: {root: \"\\0\"}\n",
		"version: 1\nlock: {timeout: 1ns}\n", "{version: 1, version: 1}", "version: 1\nlog: {file: |\n  /a\n  }\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Parse("fuzz.yaml", data)
		if err != nil {
			var wrong *Error
			if !errors.As(err, &wrong) || wrong.Source != "fuzz.yaml" || wrong.Cause == "" {
				t.Fatalf("%#v does not say what is wrong and where", err)
			}
			if diff := cmp.Diff(Config{}, got); diff != "" {
				t.Fatalf("an error came with a configuration:\n%s", diff)
			}
			return
		}
		if err := got.Validate(); err != nil {
			t.Fatalf("parsed, but not valid: %v", err)
		}
		for _, r := range got.GPUs.Map {
			if r.Line < 1 {
				t.Fatalf("%v has no line", r)
			}
		}
		again, err := Parse("fuzz.yaml", data)
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Fatalf("a second look differs: %v\n%s", err, diff)
		}
	})
}
