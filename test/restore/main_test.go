// Package restore tests restores: on other GPUs and hosts, from stored checkpoints, into an existing
// pid namespace, with files that have changed. It runs on simulated hosts, or on a real one with
// CUCRIU_TEST_DRIVER=real.
package restore

import (
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}
