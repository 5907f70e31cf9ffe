package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// quotedMessage is the first cell of a table's row, if it is a message.
var quotedMessage = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

// verb is what a message has where the page has another word or nothing.
var verb = regexp.MustCompile(`%[-+# 0-9.\[\]]*[a-zA-Z]|\$[0-9]`)

// TestTroubleshootingQuotesRealMessages: each message on the page is a part of one that the product
// prints, with … for what differs.
func TestTroubleshootingQuotesRealMessages(t *testing.T) {
	var source strings.Builder
	for _, dir := range []string{"cmd", "criuutil", "cudackpt", "hooks", "internal"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			source.WriteString(verb.ReplaceAllString(string(text), "…"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	messages := quotedMessage.FindAllStringSubmatch(read(t, "troubleshooting.md"), -1)
	if len(messages) < 25 {
		t.Fatalf("only %d messages were found", len(messages))
	}
	for _, message := range messages {
		if strings.HasPrefix(message[1], "runc ") {
			continue
		}
		if !strings.Contains(source.String(), message[1]) {
			t.Errorf("nothing prints %q", message[1])
		}
	}
}
