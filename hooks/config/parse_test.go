package config

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cucriu/cudackpt"
)

const (
	uuidA = "GPU-5a3c6a1e-0f6b-4c55-9a3e-7d1c2b3a4f50"
	uuidB = "GPU-77b1c0de-8a21-4d0f-b6c4-0e9f8d7c6b5a"
)

func byUUID(t *testing.T, text string) Selector {
	t.Helper()
	u, err := cudackpt.ParseUUID(text)
	if err != nil {
		t.Fatal(err)
	}
	return Selector{UUID: &u}
}

func TestParseReadsEveryField(t *testing.T) {
	got, err := Parse("test.yaml", []byte(`
version: 1
gpus:
  map:
    - {from: `+uuidA+`, to: 77B1C0DE8A214D0FB6C40E9F8D7C6B5A}
    - {from: {index: 1}, to: {pci: "0000:41:00.0"}}
    - from: {uuid: `+uuidB+`}
      to: {pci: 41:00.0}
  unmapped: error
hosts:
  gpu-b:
    map: [{from: {index: 0}, to: {pci: "0000:41:00.0"}}]
  10.0.0.7: {map: }
driver: {library: /opt/nvidia/lib/libcuda.so.1, root: /run/nvidia/driver}
lock: {timeout: 1m30s, try: 250ms}
checkpoint: {timeout: 20m}
pages: criu
fast_lane: {compress: zstd, sync: false, prefault: false}
checksums: true
forked_children: refuse
restore: {timeout: 15m, on_failure: leave}
force: [peer-memory, disk-space]
log: {level: debug, format: json, file: /var/log/cucriu.log}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		File: "test.yaml",
		GPUs: GPUs{
			Map: []Rule{
				{From: byUUID(t, uuidA), To: byUUID(t, uuidB), Line: 5},
				{From: Selector{Index: new(1)}, To: Selector{PCI: "0000:41:00.0"}, Line: 6},
				{From: byUUID(t, uuidB), To: Selector{PCI: "41:00.0"}, Line: 7},
			},
			Unmapped: FailUnmapped,
		},
		Hosts:          map[string]Host{"gpu-b": {Map: []Rule{{From: Selector{Index: new(0)}, To: Selector{PCI: "0000:41:00.0"}, Line: 12}}}, "10.0.0.7": {}},
		Driver:         Driver{Library: "/opt/nvidia/lib/libcuda.so.1", Root: "/run/nvidia/driver"},
		Lock:           Lock{Timeout: 90 * time.Second, Try: 250 * time.Millisecond},
		Checkpoint:     Checkpoint{Timeout: 20 * time.Minute},
		Pages:          ByCriu,
		FastLane:       FastLane{Compress: Zstd},
		Checksums:      true,
		ForkedChildren: RefuseChildren,
		Restore:        Restore{Timeout: 15 * time.Minute, OnFailure: LeaveOnFailure},
		Force:          []string{"peer-memory", "disk-space"},
		Log:            Log{Level: slog.LevelDebug, Format: JSON, File: "/var/log/cucriu.log"},
		RunDir:         "/run/cucriu",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatIsNotGivenKeepsItsDefault(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		change     func(*Config)
	}{
		{"the version alone", "version: 1\n", func(*Config) {}},
		{"sections without fields", "version: 1\ngpus:\nlock: {}\nlog: ~\n", func(*Config) {}},
		{"fields without values", "version: 1\ngpus: {map: , unmapped: }\nlock: {timeout: null}\n", func(*Config) {}},
		{"a document start", "---\nversion: 1\n", func(*Config) {}},
		{"hosts of which nothing is said", "version: 1\nhosts:\n", func(*Config) {}},
		{"a try alone", "version: 1\nlock: {try: 2s}\n", func(c *Config) { c.Lock.Try = 2 * time.Second }},
		{
			"a timeout shorter than the default try", "version: 1\nlock: {timeout: 400ms}\n",
			func(c *Config) { c.Lock = Lock{400 * time.Millisecond, 400 * time.Millisecond} },
		},
		{
			"quotes", "version: '1'\nfast_lane: {sync: 'false', prefault: \"true\"}\ncheckpoint: {timeout: '3m'}\n",
			func(c *Config) { c.FastLane.Sync, c.Checkpoint.Timeout = false, 3*time.Minute },
		},
		{
			"an alias", "version: 1\ncheckpoint: {timeout: &t 3m}\nrestore: {timeout: *t}\n",
			func(c *Config) { c.Checkpoint.Timeout, c.Restore.Timeout = 3*time.Minute, 3*time.Minute },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := Default()
			want.File = "test.yaml"
			tt.change(&want)
			got, err := Parse("test.yaml", []byte(tt.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Each refusal names the file, the line, the field, the cause and the remedy.
func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		line       int
		words      []string
	}{
		{"an empty file", "", 0, []string{"empty", "version: 1"}},
		{"comments alone", "# nothing\n", 0, []string{"empty"}},
		{"no version", "log: {level: info}\n", 0, []string{"version is missing"}},
		{"an empty version", "version:\n", 0, []string{"version is missing"}},
		{"another version", "# new\nversion: 2\n", 2, []string{`version "2"`}},
		{"a list", "- version: 1\n", 1, []string{"found a list"}},
		{"a text", "version\n", 1, []string{`found the value "version"`}},
		{"a tab", "version: 1\nlog:\n\tlevel: info\n", 3, []string{"begins with a tab", "spaces only"}},
		{"no YAML", "version: 1\nlog: {level: info\n", 1, []string{"not YAML"}},
		{"a second document", "version: 1\n---\nversion: 1\n", 2, []string{"second document"}},
		{"an empty second document", "version: 1\n---\n", 2, []string{"second document"}},
		{"a broken second document", "version: 1\n---\n}\n", 2, []string{"not YAML"}},

		{"an unknown field", "version: 1\ngpu:\n  map: []\n", 2, []string{`unknown field "gpu"`, "docs/configuration.md"}},
		{"an unknown field of a section", "version: 1\nlock:\n  timeout: 1s\n  retries: 3\n", 4, []string{`lock: unknown field "retries"`}},
		{"the run directory", "version: 1\nrun_dir: /run\n", 2, []string{`unknown field "run_dir"`}},
		{"a field without a name", "version: 1\n~: 1\n", 2, []string{`unknown field "~"`}},
		{"a list as the name of a field", "version: 1\n? [a]\n: 1\n", 2, []string{"name of a field is a list"}},
		{"a merge", "version: 1\nlock: &l {try: 1s}\ncheckpoint: {<<: *l}\n", 3, []string{`unknown field "<<"`}},
		{"an alias that contains itself", "version: 1\nlock: &l {try: *l}\n", 2, []string{"lock.try", "found fields"}},
		{"a field twice", "version: 1\nlog:\n  level: info\n  file: /a\n  level: warn\n", 5, []string{"log.level", "first on line 3"}},
		{"a section twice", "version: 1\nlock: {}\nlock: {}\n", 3, []string{"lock", "first on line 2"}},
		{"a value for a section", "version: 1\nlock: 10s\n", 2, []string{"lock", "expected fields", `"10s"`}},
		{"fields for a value", "version: 1\nlog: {level: {a: b}}\n", 2, []string{"log.level", "found fields"}},
		{"a tag", "version: 1\nlog: {file: !!binary L2Zvbw==}\n", 2, []string{"log.file", "tag !!binary"}},

		{"a list for a value", "version: 1\npages: [fast]\n", 2, []string{"pages", "expected a plain value, found a list"}},
		{"a mistake that two fields of a line could have made", "version: 1\nlock: {timeout: {}, try: {}}\n", 2, []string{"expected a plain value"}},
		{"a later version", "lock: {new: 1s}\nversion: 2\n", 2, []string{`version "2"`}},

		{"no duration", "version: 1\nlock:\n  timeout: 10\n", 3, []string{"lock.timeout", `"10" is not valid`, "10s"}},
		{"no time at all", "version: 1\nlock:\n  timeout: 0s\n", 3, []string{"lock.timeout", "out of range"}},
		{"a negative duration", "version: 1\nrestore:\n  timeout: -1s\n", 3, []string{"restore.timeout", "out of range"}},
		{"a try that the driver would take for no limit", "version: 1\nlock:\n  try: 999us\n", 3, []string{"lock.try", "out of range"}},
		{"more than the driver can count", "version: 1\nlock: {timeout: 1200h, try: 1200h}\n", 2, []string{"lock.timeout", "out of range"}},
		{"a try longer than the timeout", "version: 1\nlock:\n  timeout: 1s\n  try: 2s\n", 4, []string{"lock.try", "2s is longer", "1s"}},

		{"a relative library", "version: 1\ndriver:\n  library: lib/libcuda.so.1\n", 3, []string{"driver.library", "absolute"}},
		{"no library", "version: 1\ndriver:\n  library: \"\"\n", 3, []string{"driver.library", "soname"}},
		{"a relative root", "version: 1\ndriver:\n  root: host\n", 3, []string{"driver.root", "absolute"}},
		{"a NUL byte", "version: 1\ndriver:\n  root: \"/a\\0b\"\n", 3, []string{"driver.root", "control character"}},
		{"a NUL byte in a soname", "version: 1\ndriver:\n  library: \"a\\0b\"\n", 3, []string{"driver.library", "control character"}},
		{"a relative log", "version: 1\nlog:\n  file: cucriu.log\n", 3, []string{"log.file", "absolute"}},
		{"a directory as the log", "version: 1\nlog:\n  file: /var/log/\n", 3, []string{"log.file", "directory"}},
		{"an unknown level", "version: 1\nlog:\n  level: INFO\n", 3, []string{"log.level", "debug, info, warn or error"}},
		{"an unknown format", "version: 1\nlog:\n  format: xml\n", 3, []string{"log.format", "text or json"}},
		{"an unknown way out", "version: 1\nrestore:\n  on_failure: retry\n", 3, []string{"restore.on_failure", "kill or leave"}},
		{"what cannot be forced", "version: 1\nforce:\n  - peer-memory\n  - traced\n", 4, []string{"force", `"traced" cannot be forced`, "peer-memory"}},
		{"a value for a list", "version: 1\nforce: peer-memory\n", 2, []string{"force", "expected a list"}},
		{"an unknown policy", "version: 1\ngpus:\n  unmapped: ignore\n", 3, []string{"gpus.unmapped", "fill or error"}},

		{"fields for the map", "version: 1\ngpus:\n  map: {a: b}\n", 3, []string{"gpus.map", "expected a list"}},
		{"an empty rule", "version: 1\ngpus:\n  map:\n  -\n", 4, []string{"gpus.map[0]", "found nothing"}},
		{"half a rule", "version: 1\ngpus:\n  map:\n  - {from: {index: 0}, to: {index: 1}}\n  - {from: " + uuidA + "}\n", 5, []string{"gpus.map[1]", "to: it is missing; write {from"}},
		{"a rule with a third side", "version: 1\ngpus:\n  map:\n  - {from: {index: 0}, to: {index: 1}, via: {index: 2}}\n", 4, []string{"gpus.map[0]", `unknown field "via"`}},
		{"a side twice", "version: 1\ngpus:\n  map:\n  - from: {index: 0}\n    to: {index: 1}\n    from: {index: 2}\n", 6, []string{"gpus.map[0].from", "twice"}},
		{"no UUID", "version: 1\ngpus:\n  map:\n  - {from: GPU-5a3c, to: {index: 0}}\n", 4, []string{"gpus.map[0].from", "GPU-5a3c", "nvidia-smi -L"}},
		{"a MIG instance", "version: 1\ngpus:\n  map:\n  - {from: {index: 0}, to: MIG-5a3c6a1e-0f6b-4c55-9a3e-7d1c2b3a4f50}\n", 4, []string{"gpus.map[0].to", "MIG"}},
		{"no PCI address", "version: 1\ngpus:\n  map:\n  - {from: {pci: \"41\"}, to: {index: 0}}\n", 4, []string{"gpus.map[0]", "from: \"41\" is not a PCI address"}},
		{"no index", "version: 1\ngpus:\n  map:\n  - {from: {index: first}, to: {index: 0}}\n", 4, []string{"gpus.map[0].from.index", "not a whole number"}},
		{"a negative index", "version: 1\ngpus:\n  map:\n  - {from: {index: -1}, to: {index: 0}}\n", 4, []string{"gpus.map[0]", "negative"}},
		{"two selectors", "version: 1\ngpus:\n  map:\n  - {from: {index: 1, pci: \"41:00.0\"}, to: {index: 0}}\n", 4, []string{"gpus.map[0]", "from: 2 of uuid"}},
		{"a list of hosts", "version: 1\nhosts:\n  - gpu-b\n", 3, []string{"hosts", "expected fields, found a list"}},
		{"an unknown field of a host", "version: 1\nhosts:\n  gpu-b:\n    gpus: []\n", 4, []string{"hosts.gpu-b", `unknown field "gpus"`}},
		{"a host twice", "version: 1\nhosts:\n  gpu-b: {}\n  gpu-b: {}\n", 4, []string{"hosts.gpu-b", "first on line 3"}},
		{"a user beside a host", "version: 1\nhosts:\n  me@gpu-b: {map: []}\n", 3, []string{"hosts.me@gpu-b", "not a host name", "without a user"}},
		{"half a rule for a host", "version: 1\nhosts:\n  gpu-b:\n    map:\n    - {from: {index: 0}}\n", 5, []string{"hosts.gpu-b.map[0]", "to: it is missing; write {from"}},
		{"a list as the name of a host", "version: 1\nhosts:\n  ? [a]\n  : {}\n", 3, []string{"hosts", "name of a field is a list"}},
		{"an unknown selector", "version: 1\ngpus:\n  map:\n  - {from: {minor: 1}, to: {index: 0}}\n", 4, []string{"gpus.map[0].from", `unknown field "minor"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("/etc/test.yaml", []byte(tt.data))
			var wrong *Error
			if !errors.As(err, &wrong) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if wrong.Source != "/etc/test.yaml" || wrong.Cause == "" || wrong.Remedy == "" {
				t.Errorf("%#v does not name source, cause and remedy", wrong)
			}
			if tt.line != 0 && wrong.Line != tt.line {
				t.Errorf("line %d, want %d: %v", wrong.Line, tt.line, err)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not mention %q", err, word)
				}
			}
			if strings.Contains(err.Error(), "config.") {
				t.Errorf("%q names a type of the program", err)
			}
		})
	}
}

// Aliases cannot turn a small file into a large configuration: the fields limit how deep the
// walk goes, and the list of rules cannot be nested.
func TestNestedAliasesDoNotMultiply(t *testing.T) {
	data := "version: 1\ngpus:\n  map:\n  - &a0 [x]\n"
	for i := range 30 {
		n := string(rune('0' + i%10))
		data += "  - &a" + n + " [*a" + n + ", *a" + n + "]\n"
	}
	start := time.Now()
	if _, err := Parse("test.yaml", []byte(data)); err == nil {
		t.Error("lists passed as rules")
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("the refusal took %v", took)
	}
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestTheMapOfAHostIsThatOfItsName(t *testing.T) {
	rules := []Rule{{From: Selector{Index: new(0)}, To: Selector{Index: new(1)}}}
	cfg := Config{GPUs: GPUs{Map: []Rule{{}}}, Hosts: map[string]Host{"gpu-b": {Map: rules}}}
	for _, tt := range []struct {
		to   string
		want []Rule
	}{{"gpu-b", rules}, {"me@gpu-b", rules}, {"gpu-c", nil}, {"gpu-b@gpu-c", nil}, {"", nil}} {
		if diff := cmp.Diff(tt.want, cfg.MapFor(tt.to)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.to, diff)
		}
	}
}
