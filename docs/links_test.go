package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	codeBlock  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inlineCode = regexp.MustCompile("`[^`\n]*`")
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

func TestLinksLeadSomewhere(t *testing.T) {
	links := 0
	for _, path := range documents(t) {
		text := inlineCode.ReplaceAllString(codeBlock.ReplaceAllString(read(t, path), ""), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			if err := follow(path, match[1]); err != nil {
				t.Errorf("%s: link to %s: %v", path, match[1], err)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d relative links were found: are they read as they are written?", links)
	}
}

// follow fails if a relative link leads to no file, or to no heading of it.
func follow(from, target string) error {
	file, anchor, hasAnchor := strings.Cut(target, "#")
	path := from
	if file != "" {
		path = filepath.Join(filepath.Dir(from), file)
	}
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if !hasAnchor {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, match := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(data), ""), -1) {
		if slug(match[1]) == anchor {
			return nil
		}
	}
	return fmt.Errorf("%s has no heading #%s", path, anchor)
}

// slug is the anchor that GitHub gives a heading that is the only one of its text.
func slug(heading string) string {
	text := strings.ToLower(strings.TrimSpace(linkText.ReplaceAllString(heading, "$1")))
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return r
		}
		return -1
	}, text)
}
