// Package version holds the version that the build sets.
package version

// Version is set by the linker: -X cucriu/internal/version.Version=….
var Version = "dev"
