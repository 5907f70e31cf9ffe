package scripts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheMirrorOfThisSystemsAptIsTriedFirst(t *testing.T) {
	const (
		debian   = "ID=debian\nVERSION_CODENAME=bookworm\n"
		fallback = "http://deb.debian.org/debian"
	)
	for name, test := range map[string]struct {
		file, text, os, want string
	}{
		"one line":                 {"sources.list", "# deb http://no/debian bookworm main\ndeb [arch=amd64] http://mirror/debian/ bookworm main\n", debian, "http://mirror/debian"},
		"of a codename not here":   {"sources.list", "deb http://mirror/debian trixie main\n", debian, ""},
		"security alone":           {"sources.list", "deb http://mirror/debian-security bookworm-security main\n", debian, ""},
		"source packages":          {"sources.list", "deb-src http://mirror/debian bookworm main\n", debian, ""},
		"in a folder":              {"sources.list.d/a.list", "deb https://mirror/debian stable main\n", debian, "https://mirror/debian"},
		"deb822":                   {"sources.list.d/a.sources", "Types: deb\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\nComponents: main\n", debian, "http://mirror/debian"},
		"deb822, the second":       {"sources.list.d/a.sources", "Types: deb\nURIs: http://no/security\nSuites: bookworm-security\n\nTypes: deb\nURIs: http://mirror/debian\nSuites: bookworm\n", debian, "http://mirror/debian"},
		"deb822, switched off":     {"sources.list.d/a.sources", "Enabled: no\nTypes: deb\nURIs: http://mirror/debian\nSuites: bookworm\n", debian, ""},
		"a disc":                   {"sources.list", "deb cdrom:[Debian]/ bookworm main\n", debian, ""},
		"another distribution's":   {"sources.list", "deb http://mirror/ubuntu noble main\n", "ID=ubuntu\nVERSION_CODENAME=noble\n", ""},
		"the one that is known":    {"sources.list", "deb " + fallback + " bookworm main\n", debian, fallback},
		"no list, and no codename": {"empty", "", "ID=debian\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, release := filepath.Join(dir, test.file), filepath.Join(dir, "os-release")
			for path, text := range map[string]string{file: test.text, release: test.os} {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			out, err := script(t, "debian-mirror.sh", dir, release).Output()
			if err != nil {
				t.Fatal(err)
			}
			want := fallback + "\n"
			if test.want != "" && test.want != fallback {
				want = test.want + "\n" + want
			}
			if got := string(out); got != want {
				t.Errorf("got %q, want %q", strings.Fields(got), strings.Fields(want))
			}
		})
	}
}
