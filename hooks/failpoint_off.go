//go:build !failpoint

package hooks

import "context"

// failpoint does nothing in a real build; the fault tests build with -tags
// failpoint.
func failpoint(context.Context, *Session, string) error { return nil }
