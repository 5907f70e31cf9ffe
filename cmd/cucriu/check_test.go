package main

import (
	"strings"
	"testing"
)

// TestACheckSaysWhatItHasNotRead of an image; of a dump and of a machine there is nothing to say.
func TestACheckSaysWhatItHasNotRead(t *testing.T) {
	if text := checked(0, "/images", 1); text != "/images can be restored here, with 1 warning; its pages were not read: cucriu verify /images does" {
		t.Error(text)
	}
	for _, text := range []string{checked(0, "", 0), checked(7, "/images", 0)} {
		if strings.Contains(text, "verify") {
			t.Error(text)
		}
	}
}
