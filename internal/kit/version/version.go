// Package version holds the version, which the build sets.
package version

// Version is set by the linker: -X cucriu/internal/kit/version.Version=….
var Version = "dev"
