package commit

import (
	"os"
	"testing"

	"cucriu/internal/testenv/quick"
)

func TestMain(m *testing.M) {
	if err := quick.Choose(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
