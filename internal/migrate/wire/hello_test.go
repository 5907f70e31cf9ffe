package wire

import (
	"strings"
	"testing"
)

func TestNegotiate(t *testing.T) {
	for name, c := range map[string]struct {
		ours, theirs Hello
		says         string
	}{
		"equal":            {Hello{3, 1, "us"}, Hello{3, 2, "them"}, ""},
		"they are newer":   {Hello{3, 1, "us"}, Hello{5, 3, "them"}, ""},
		"we are newer":     {Hello{5, 2, "us"}, Hello{2, 1, "them"}, ""},
		"we are too old":   {Hello{3, 1, "us"}, Hello{6, 4, "them"}, "install a newer one here"},
		"they are too old": {Hello{6, 4, "us"}, Hello{3, 1, "them"}, "install a newer one there"},
		"nonsense":         {Hello{3, 1, "us"}, Hello{-1, 0, "them\x1b[0m" + strings.Repeat("m", 1000)}, `"them\x1b[0m`},
		"upside down":      {Hello{3, 1, "us"}, Hello{1, 2, "them"}, "versions 2 to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Negotiate(c.ours, c.theirs)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}
