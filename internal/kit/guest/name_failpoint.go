//go:build failpoint

package guest

// The tests' library makes small parts, for small memory.
const name = "small"
