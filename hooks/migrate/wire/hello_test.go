package wire

import (
	"strings"
	"testing"
)

func TestNegotiate(t *testing.T) {
	for name, c := range map[string]struct {
		ours, theirs Hello
		version      int
		says         string
	}{
		"equal":            {Hello{3, 1, "us"}, Hello{3, 2, "them"}, 3, ""},
		"they are newer":   {Hello{3, 1, "us"}, Hello{5, 3, "them"}, 3, ""},
		"we are newer":     {Hello{5, 2, "us"}, Hello{2, 1, "them"}, 2, ""},
		"we are too old":   {Hello{3, 1, "us"}, Hello{6, 4, "them"}, 0, "install a newer one here"},
		"they are too old": {Hello{6, 4, "us"}, Hello{3, 1, "them"}, 0, "install a newer one there"},
		"nonsense":         {Hello{3, 1, "us"}, Hello{-1, 0, "them\x1b[0m" + strings.Repeat("m", 1000)}, 0, `"them\x1b[0m`},
		"upside down":      {Hello{3, 1, "us"}, Hello{1, 2, "them"}, 0, "versions 2 to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			version, err := Negotiate(c.ours, c.theirs)
			if version != c.version || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("version %d, %v", version, err)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}
