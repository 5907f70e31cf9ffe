// Package jobs tests what people ask of a long job while it runs: cucriu jobs checkpoint, pause,
// resume, stop.
package jobs

import (
	"testing"

	"cucriu/internal/testenv"
)

// The words of the tests.
var simulated = testenv.Simulated

func TestMain(m *testing.M) {
	testenv.Main(m)
}
