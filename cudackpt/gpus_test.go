package cudackpt

import "testing"

func TestPCIAddressesAreComparedByValue(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"41:00.0", "0000:41:00.0", true},
		{"41:00.0", "00000000:41:00.0", true},
		{"0000:C1:1F.7", "00000000:c1:1f.7", true},
		{"10000:01:00.0", "00010000:01:00.0", true},
		{"0001:41:00.0", "41:00.0", false},
		{"41:00.0", "41:00.1", false},
		{"41:00.0", "41:01.0", false},
		{"", "", false},
		{"41:00.0", "", false},
	} {
		if got := SamePCI(tt.a, tt.b); got != tt.same {
			t.Errorf("SamePCI(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}
