package scripts

import (
	"os"
	"strings"
	"testing"
)

// TestDemo runs what `make demo` runs. It needs root, and what `make build sim workload` makes.
func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the demo runs real criu and needs root")
	}
	out, err := script(t, "demo.sh").CombinedOutput()
	if err != nil {
		t.Fatalf("demo.sh: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "every word of its GPU memory is right") {
		t.Fatalf("the demo does not say that the memory is right:\n%s", out)
	}
}
