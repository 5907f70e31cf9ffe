// Package faults tests the promise: at every step of both protocols something breaks or is
// killed, and the job goes on where it was or restarts from a complete image.
// docs/fault-matrix.md lists the outcomes.
package faults

import (
	"flag"
	"os"
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The rows of the matrix wait more than they compute.
	if err := flag.Set("test.parallel", "4"); err != nil {
		os.Exit(2)
	}
	testenv.Main(m)
}
