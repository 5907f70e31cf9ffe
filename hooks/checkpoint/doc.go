// Package checkpoint does a whole dump or restore. It is what cucriu dump and cucriu
// restore call. It starts a criu of its own, drives it over RPC, and serves its stages with
// a [hooks.Hook]. It also brings the session to its end, so its caller learns what became
// of the job.
//
// An image directory is complete or absent: criu writes into a partial one beside it. That
// one gets the name at post-dump, with the processes still held, or after criu has ended if
// the job is left alive.
package checkpoint
