package job

import (
	"errors"
	"strings"
	"testing"
)

// TestACommandInQuotesIsExplained: it is one word, and the name of no program.
func TestACommandInQuotesIsExplained(t *testing.T) {
	for command, want := range map[string]string{"sh train.sh": "leave out the quotes, or give it to a shell", "nosuchprogram": "not found"} {
		_, err := Start(Command{Args: []string{command}})
		failed := new(NotStartedError)
		if !errors.As(err, &failed) || failed.Status != StatusNotFound || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}
