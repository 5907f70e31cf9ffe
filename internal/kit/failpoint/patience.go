//go:build failpoint

package failpoint

import (
	"os"
	"strconv"
	"time"
)

// Patience returns how long to wait for something that may never come. The tests have less time
// than d: $CUCRIU_FAILPOINT_HASTE is how many times less.
func Patience(d time.Duration) time.Duration {
	if haste, err := strconv.Atoi(os.Getenv("CUCRIU_FAILPOINT_HASTE")); err == nil && haste > 1 {
		return d / time.Duration(haste)
	}
	return d
}
