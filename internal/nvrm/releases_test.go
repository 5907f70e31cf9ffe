package nvrm

import (
	"slices"
	"testing"
)

func TestEvidenceOf(t *testing.T) {
	for version, want := range map[string]Evidence{
		"580.159.04": Measured,
		"570.86.15":  Compared,
		"570.144":    Compared,
		"595.45.04":  Compared,
		"580.150.01": Compared, // between one that was compared and the one that was measured
		"570.86.14":  Unknown,
		"570.300":    Unknown,
		"580.159.05": Unknown,
		"580":        Unknown,
		"585.10":     Unknown,
		"550.163.01": Unknown,
		"610.1":      Unknown,
		"":           Unknown,
	} {
		if got := EvidenceOf(version); got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
	if !slices.IsSortedFunc(releases[Compared], compareVersions) {
		t.Error("the releases are not in order")
	}
	if n := len(releases[Compared]); n != 57 {
		t.Errorf("%d releases", n)
	}
}
