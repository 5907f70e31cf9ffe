// Package checkpoint does a whole dump or restore: it starts a criu of its own, drives
// it over RPC, serves its stages with a [hooks.Hook], and takes the session to its end,
// so that its caller learns what became of the job. An image directory is complete or
// absent: criu writes into a partial one beside it, which gets the name at post-dump,
// with the processes still held. It is what cucriu dump and cucriu restore call.
package checkpoint
