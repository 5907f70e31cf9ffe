//go:build !failpoint

package failpoint

import "context"

// Hit does nothing in a real build; the fault tests build with -tags failpoint.
func Hit(context.Context, string, int) error { return nil }
