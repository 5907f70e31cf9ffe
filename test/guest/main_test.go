package guest

import (
	"testing"

	"cucriu/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}
