package docs

import (
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestThePackageRecommendsTheCRIUThatItNeeds, which not every release that can install the package has.
func TestThePackageRecommendsTheCRIUThatItNeeds(t *testing.T) {
	needed := regexp.MustCompile(`CRIU ([0-9.]+) or newer`).FindStringSubmatch(read(t, readme))
	if needed == nil {
		t.Fatal("README.md does not say which CRIU is needed")
	}
	var text struct {
		Overrides map[string]struct{ Recommends []string }
	}
	if err := yaml.Unmarshal([]byte(read(t, "../configs/package/nfpm.yaml")), &text); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{"deb": "criu (>= " + needed[1] + ")", "rpm": "criu >= " + needed[1]} {
		if got := strings.Join(text.Overrides[format].Recommends, ", "); !strings.Contains(got+",", want+",") {
			t.Errorf("the %s recommends %s, and not %s", format, got, want)
		}
	}
}
