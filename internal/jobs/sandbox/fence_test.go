package sandbox

import "testing"

func TestAFenceOfABackupEndsNothing(t *testing.T) {
	const own = "boot 1 5 1000\n"
	for text, want := range map[string]bool{
		"boot 1 4 900\n":       true,
		"boot 1 5 900\n":       true,
		"other boot 1 4 900\n": false, // of no version
		"another 1 4 900\n":    true,
		"boot 1 6 900\n":       false,
		"boot 1 5 1001\n":      false,
		"another 1 6 2000\n":   false,
		"boot 1\n":             false, // an earlier version has taken the job over
		"":                     false,
	} {
		if isEarlier(text, own) != want {
			t.Errorf("%q is taken for earlier: %v", text, !want)
		}
	}
}
