package hosts

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"cucriu/internal/testenv"
)

// roleVariable says as what the test binary starts itself again.
const roleVariable = "CUCRIU_TEST_HOST_ROLE"

const (
	roleInit      = "init"
	roleRSH       = "rsh"
	roleRSHServer = "rshd"
)

// The clocks of a time namespace can be set on the main thread only.
func init() {
	if os.Getenv(roleVariable) == roleInit {
		runtime.LockOSThread()
	}
}

// Main is the TestMain of packages whose tests call [New].
func Main(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		testenv.Main(m)
		return
	}
	os.Unsetenv(roleVariable)
	status, err := run(role)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		status = 255 // as of ssh
	}
	os.Exit(status)
}

func run(role string) (int, error) {
	switch role {
	case roleInit:
		return 0, runInit()
	case roleRSH:
		return runRSH(os.Args[1:])
	case roleRSHServer:
		return 0, serveRSH(os.Args[1])
	}
	return 0, fmt.Errorf("unknown role %q", role)
}
