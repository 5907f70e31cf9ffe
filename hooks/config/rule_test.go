package config

import (
	"strings"
	"testing"
)

func TestTextThatIsNoPCIAddressIsRefused(t *testing.T) {
	for _, text := range []string{
		"", "41", "41:00", "0000:41:00", "41:00.8", "41:20.0", "4g:00.0", ":41:00.0", "000000000:41:00.0",
		"0000:0041:00.0", "0000:41:00.0.0", "0000:41:00.00", "+1:41:00.0", "0x0:41:00.0", "0000:41:00.0 ", "0:0000:41:00.0",
	} {
		if err := (Selector{PCI: text}).Validate(); err == nil {
			t.Errorf("%q passed as a PCI address", text)
		}
	}
}

func TestAPairIsReadFromTheCommandLine(t *testing.T) {
	uuid := "GPU-94f0471d-eeee-49e3-b780-28f9f706335d"
	for text, want := range map[string]string{
		"0=1":                         "the rule from index 0 to index 1",
		uuid + "=1":                   "the rule from " + uuid + " to index 1",
		"0000:41:00.0=42:00.0":        "the rule from pci 0000:41:00.0 to pci 42:00.0",
		"0":                           "expected FROM=TO, such as 0=1",
		"0=":                          `to: "" is not an index, a UUID or a PCI address`,
		"a=1":                         `from: "a" is not an index, a UUID or a PCI address`,
		"-1=0":                        "from: index -1 is negative; positions count from 0",
		"0=1,1=0":                     "one pair each: --map 0=1 --map 1=0",
		"0=1=2":                       `to: "1=2" is not an index, a UUID or a PCI address`,
		"0=GPU-94f0471d":              "GPU-94f0471d",
		"0=MIG-" + uuid[len("GPU-"):]: "MIG instance",
		"0=:":                         "PCI",
	} {
		r, err := ParseRule(text)
		got := r.String()
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
