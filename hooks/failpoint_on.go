//go:build failpoint

package hooks

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// failpoint makes the step that $CUCRIU_FAILPOINT names go wrong as it begins:
// "dump.lock=kill" (SIGKILL of this process), "=error", or "=hang". Several
// are separated by commas.
func failpoint(step string) error {
	for _, point := range strings.Split(os.Getenv("CUCRIU_FAILPOINT"), ",") {
		name, what, _ := strings.Cut(point, "=")
		if name != step {
			continue
		}
		switch what {
		case "kill":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case "hang":
			time.Sleep(time.Hour)
		default:
			return fmt.Errorf("failpoint %s", step)
		}
	}
	return nil
}
