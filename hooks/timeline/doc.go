// Package timeline knows where the time of a dump or restore went: the phases that a session
// notes, and how they are drawn in Chrome's trace event format. It must not know sessions or
// processes.
package timeline
