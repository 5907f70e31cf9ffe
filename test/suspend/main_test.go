// Package suspend tests cucriu suspend, resume, lock, unlock and state. It runs on simulated hosts, or
// on a real one with CUCRIU_TEST_DRIVER=real.
package suspend

import (
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}
