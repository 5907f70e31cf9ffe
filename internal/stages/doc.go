// Package stages does what is to be done at the stages of criu's dump and restore. They reach us in
// three ways: as criu's action script ([Run]), through go-criu's callbacks, or from a criu that
// package checkpoint drives over its RPC ([Serve]). Only package checkpoint learns how criu ended,
// and brings the session to its end at once; the others leave that to the watcher. Package hooks
// draws the protocol.
package stages
