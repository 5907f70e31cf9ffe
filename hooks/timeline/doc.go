// Package timeline knows where the time of a dump or restore went: the phases that
// a session notes, and their drawing in Chrome's trace event format. It knows no
// session and no process.
package timeline
