//go:build !failpoint

package hooks

// failpoint does nothing in a real build; the fault tests build with -tags
// failpoint.
func failpoint(string) error { return nil }
