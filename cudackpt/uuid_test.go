package cudackpt

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestAUUIDIsReadInEverySpellingButMIGs(t *testing.T) {
	const canonical = "GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab"
	for _, row := range []struct{ text, err string }{
		{text: canonical},
		{text: strings.ToUpper(canonical)},
		{text: "gpu-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab"},
		{text: "5a3c11f0-9d2b-4e6f-8a7b-0123456789ab"},
		{text: "5a3c11f09d2b4e6f8a7b0123456789ab"},
		{text: "GPU-5a3c11f09d2b4e6f8a7b0123456789AB"},
		{"", "not the UUID of a GPU"},
		{"GPU-", "not the UUID of a GPU"},
		{"0", "not the UUID of a GPU"},
		{"MIG-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab", "names a MIG instance"},
		{"mig-GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab/1/0", "names a MIG instance"},
		{"GPU-GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab", "not the UUID of a GPU"},
		{"GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789a", "not the UUID of a GPU"},
		{"GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789abc", "not the UUID of a GPU"},
		{"GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789ag", "not the UUID of a GPU"},
		{"GPU-5a3c11f09-d2b-4e6f-8a7b-0123456789ab", "not the UUID of a GPU"},
		{"5a3c11f0--9d2b4e6f-8a7b-0123456789ab", "not the UUID of a GPU"},
		{" " + canonical, "not the UUID of a GPU"},
	} {
		t.Run(row.text, func(t *testing.T) {
			u, err := ParseUUID(row.text)
			switch {
			case row.err == "" && err != nil:
				t.Errorf("ParseUUID(%q): %v", row.text, err)
			case row.err == "" && u.String() != canonical:
				t.Errorf("ParseUUID(%q) is %v, want %s", row.text, u, canonical)
			case row.err != "" && (err == nil || !strings.Contains(err.Error(), row.err)):
				t.Errorf("ParseUUID(%q): error %v, want one that says %q", row.text, err, row.err)
			case row.err != "" && !errors.Is(err, ErrInvalidArgument):
				t.Errorf("ParseUUID(%q): error %v is not ErrInvalidArgument", row.text, err)
			}
		})
	}
}

func TestUUIDIsTextInJSON(t *testing.T) {
	want := map[UUID]GPUPair{{1}: {Old: UUID{2}, New: UUID{15: 3}}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const wantText = `{"GPU-01000000-0000-0000-0000-000000000000":{"old":"GPU-02000000-0000-0000-0000-000000000000","new":"GPU-00000000-0000-0000-0000-000000000003"}}`
	if string(text) != wantText {
		t.Errorf("JSON is %s, want %s", text, wantText)
	}
	var got map[UUID]GPUPair
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[UUID{1}] != want[UUID{1}] {
		t.Errorf("read back: %v, want %v", got, want)
	}
	if err := json.Unmarshal([]byte(`{"old":"MIG-1"}`), &GPUPair{}); err == nil {
		t.Error("a MIG instance was read as a GPU")
	}
}

func FuzzParseUUID(f *testing.F) {
	for _, seed := range []string{"", "GPU-", "MIG-1", "GPU-5a3c11f0-9d2b-4e6f-8a7b-0123456789ab", "5a3c11f09d2b4e6f8a7b0123456789ab"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseUUID(text)
		if err != nil {
			if !u.IsZero() {
				t.Errorf("ParseUUID(%q) gives %v with error %v", text, u, err)
			}
			return
		}
		// What is accepted differs from the canonical form only in case, prefix and hyphens.
		plain := func(s string) string {
			return strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(s), "gpu-"), "-", "")
		}
		if plain(text) != plain(u.String()) {
			t.Errorf("ParseUUID(%q) is %v", text, u)
		}
		if again, err := ParseUUID(u.String()); err != nil || again != u {
			t.Errorf("ParseUUID(%v) is %v, %v", u, again, err)
		}
	})
}
