//go:build !failpoint

package guest

const name = "guest"
