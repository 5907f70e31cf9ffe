// Package watch brings sessions to their end when criu has ended: as the watcher of one session
// ([Run]), for the program that drove criu ([Finish]), for an operator ([Recover]), and for a
// migration that holds a job until it is decided which copy survives ([Decide]). What is to become of
// a dump's job is decided in verdict.go.
package watch
