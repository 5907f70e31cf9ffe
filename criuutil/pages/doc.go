// Package pages copies memory of stopped processes out into chunks and back,
// by many threads. It is the way of GPU state around criu, which writes one
// process at a time with one thread: once a checkpoint has moved the state into
// a process's memory, that memory is copied out here, and dropped in the
// process before criu looks at it.
//
// A [Chunk] is a piece of at most [ChunkSize] bytes of the memory, with its
// CRC-32C, compressed or not; what holds only zeros is not stored. [Copy] makes
// chunks of a process's memory and hands them to a [Sink]; [Fill] takes them
// from a [Source] and writes them into a process, checked. Where they go is a
// [Store]: here [Files] in a directory.
//
// The files of one process are an index, which says where each chunk is, and
// one or more shards, which hold the chunks. Each worker writes a shard of its
// own, because the kernel lets only one write at a time go to a file. Whoever
// keeps the [Listing] of them (a manifest) can tell every damage: it has the
// sizes of all files and the checksum of the index, and the index has those of
// the chunks.
//
// The package knows memory and files, nothing of CUDA or criu.
package pages
