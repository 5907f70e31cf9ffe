package drivers

import (
	"slices"
	"strings"
	"testing"
)

func TestFor(t *testing.T) {
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
		"9999.1":     Unknown,
		"":           Unknown,
	} {
		if got := For(version).Module; got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
	for _, b := range branches {
		if !slices.IsSortedFunc(b.compared, compareVersions) {
			t.Errorf("the releases of %s are not in order", b.number)
		}
		for _, version := range slices.Concat(b.measured, b.compared) {
			if !strings.HasPrefix(version, b.number+".") {
				t.Errorf("%s is none of %s", version, b.number)
			}
		}
	}
}

// TestTheLibraryIsForBranchesThatItWasTriedWith: not for a driver that nobody tried, however it calls itself.
func TestTheLibraryIsForBranchesThatItWasTriedWith(t *testing.T) {
	for version, want := range map[string]bool{
		"580.159.04": true,
		"580.300.01": true,
		"570.211.01": false,
		"590.48.01":  false,
		"9999.1":     false,
		"5800.1":     false,
		"580":        false,
		"":           false,
	} {
		if got := For(version).Library; got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

// TestAnUnknownDriverHasTheMeasuredSizes: who needs one gets what is known, and the evidence says that it may not hold.
func TestAnUnknownDriverHasTheMeasuredSizes(t *testing.T) {
	known := For("580.159.04")
	for _, version := range []string{"", "9999.1", "550.163.01", "\x00", "580.-1", "580.x.y", "."} {
		want := Facts{Version: version, FabricLeast: known.FabricLeast, ContextBytes: known.ContextBytes}
		if f := For(version); f != want {
			t.Errorf("%q: %+v", version, f)
		}
	}
	if Checkpoint != (Since{"570", 12080}) || GPUPairs != (Since{"580", 13000}) {
		t.Errorf("%+v, %+v", Checkpoint, GPUPairs)
	}
}

func TestIsLibcuda(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/lib/libcuda.so": true, "libcuda.so.1": true, "/x/libcuda.so.580.159.04": true,
		"/usr/lib/libcudart.so.13": false, "libcudadebugger.so.1": false, "/libcuda.so.1/x": false, "": false,
	} {
		if IsLibcuda(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}
