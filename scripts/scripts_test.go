// Package scripts holds the tests of the scripts beside it.
package scripts

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

// script returns a command that runs one of the scripts.
func script(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, "./"+name, args...)
}

// needApt leaves out what is there for systems with apt alone: on others nothing
// is downloaded, which provide_unpacked says.
func needApt(t *testing.T) {
	t.Helper()
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this system has no %s, without which the script is not used", program)
		}
	}
}
