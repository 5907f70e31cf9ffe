package units

import "testing"

func TestSizesAreReadAndWritten(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "512M": 512 << 20, "2G": 2 << 30, "3T": 3 << 40, "7K": 7 << 10, "1g": 1 << 30, "2GiB": 2 << 30, "3MB": 3 << 20, "1P": 1 << 50} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "M", "1MM", "1.5G", "G1", "9223372036854775807K", "99999999999999999999"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
	for bytes, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 30: "3.0 GiB", 5 << 50: "5120.0 TiB"} {
		if got := Size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}
