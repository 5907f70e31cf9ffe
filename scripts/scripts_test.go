// Package scripts tests the scripts in this directory.
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
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, "./"+name, args...)
}

// needApt skips a test on systems without apt. There nothing is downloaded, and
// provide_unpacked says so.
func needApt(t *testing.T) {
	t.Helper()
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this system has no %s, without which the script is not used", program)
		}
	}
}
