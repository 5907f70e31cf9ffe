// Package jobs tests what people ask of a long job while it runs: cucriu jobs checkpoint, pause,
// resume, stop.
package jobs

import (
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}
