// Package faults tests the promise: at every step of both protocols something breaks or is
// killed, and the job goes on where it was or restarts from a complete image.
// docs/fault-matrix.md lists the outcomes.
package faults

import (
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m, 4)
}
