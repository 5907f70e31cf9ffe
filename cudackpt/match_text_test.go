package cudackpt

import (
	"strings"
	"testing"
)

func TestAMismatchNamesEachPathOnce(t *testing.T) {
	const path, other = "/usr/lib/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.1"
	if text := mismatch(4711, path, path).Error(); strings.Count(text, path) != 1 || !strings.Contains(text, "upgraded") {
		t.Error(text)
	}
	if text := mismatch(4711, other, path).Error(); strings.Count(text, path) != 1 || strings.Count(text, other) != 1 {
		t.Error(text)
	}
}
