//go:build !failpoint

package failpoint

import (
	"context"
	"time"
)

// Hit does nothing in a release build. The tests use programs that are built with -tags
// failpoint.
func Hit(context.Context, string, int) error { return nil }

// Patience returns d: a release build waits as long as it is meant to.
func Patience(d time.Duration) time.Duration { return d }
