package criuutil

import "testing"

func TestVersions(t *testing.T) {
	for text, want := range map[string]Version{
		"4.2.1": {4, 2}, "6.16-rc1": {6, 16}, "580.159.04": {580, 159}, "6.18.2-amd64": {6, 18}, "5": {5, 0},
	} {
		if got, err := ParseVersion(text); got != want || err != nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "v4.2", "-rc1"} {
		if got, err := ParseVersion(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
	if v := (Version{6, 16}); v.Before(6, 16) || v.Before(5, 99) || !v.Before(6, 17) || !v.Before(7, 0) {
		t.Error("6.16 is not where it belongs")
	}
}
