// Package jobs knows how a long job is started so that it can be dumped later, and what its
// starter does while it runs. It knows nothing yet of schedules and stores.
package jobs
