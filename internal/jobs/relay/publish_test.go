package relay

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Publish{
		"8080:80":               {New: 8080, Old: 80},
		"0:80/tcp":              {Old: 80},
		"5353:53/udp":           {New: 5353, Old: 53, UDP: true},
		"10.0.0.1:1:2":          {Address: netip.MustParseAddr("10.0.0.1"), New: 1, Old: 2},
		"0.0.0.0:65535:65535":   {Address: netip.IPv4Unspecified(), New: 65535, Old: 65535},
		"[::1]:1:2/udp":         {Address: netip.IPv6Loopback(), New: 1, Old: 2, UDP: true},
		"[fe80::1%eth0]:1:2":    {Address: netip.MustParseAddr("fe80::1%eth0"), New: 1, Old: 2},
		"[::ffff:10.0.0.1]:1:2": {Address: netip.MustParseAddr("10.0.0.1"), New: 1, Old: 2},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s is read as %+v (%v)", text, got, err)
		}
		if again, err := Parse(got.String()); err != nil || again != want {
			t.Errorf("%s is written as %s", text, got)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, why := range map[string]string{
		"":                  "want [ADDRESS:]NEW:OLD",
		"80":                "want [ADDRESS:]NEW:OLD",
		":80":               "want [ADDRESS:]NEW:OLD",
		":80:80":            "want [ADDRESS:]NEW:OLD",
		"80:80/sctp":        "want [ADDRESS:]NEW:OLD",
		"-1:80":             "want [ADDRESS:]NEW:OLD",
		"80:65536":          "up to 65535",
		"99999999999999:80": "up to 65535",
		"80:0":              "only NEW may be 0",
		"localhost:80:80":   "must be an IP address",
		"::1:80:80":         "in brackets",
		"[10.0.0.1]:80:80":  "must be an IP address",
		"[::1:80:80":        "must be an IP address",
		"10.0.0.1:80:80:80": "must be an IP address",
		"\x1b[2J:80:80":     `"\x1b[2J:80:80"`,
	} {
		if p, err := Parse(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q is read as %+v (%v), want an error with %q", text, p, err, why)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0:1")
	f.Add("1.2.3.4:80:80/udp")
	f.Add("[::1]:1:2/tcp")
	f.Add("[fe80::1%a]:b]:1:2")
	f.Add("[::ffff:1.2.3.4%x]:1:2")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			if p != (Publish{}) {
				t.Fatalf("%q is read as %+v, with %v", text, p, err)
			}
			return
		}
		if again, err := Parse(p.String()); err != nil || again != p || p.Old == 0 {
			t.Fatalf("%q is read as %+v, and that again as %+v (%v)", text, p, again, err)
		}
	})
}
