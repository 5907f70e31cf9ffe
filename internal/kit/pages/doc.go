// Package pages copies memory of stopped processes into checked chunks and back, with many
// threads. GPU state takes this way around criu, which writes one process at a time with
// one thread. Once a checkpoint has moved the GPU state into a process's memory, that
// memory is copied out here, and is dropped in the process before criu looks at it.
//
// A [Chunk] is a piece of memory of at most [ChunkSize] bytes with its CRC-32C, compressed
// or not. Chunks that hold only zeros are not stored. [Copy] makes chunks of a process's
// memory and hands them to a [Sink]. [Fill] takes chunks from a [Source], checks them, and
// writes them into a process. [Writer] is a sink and [Reader] a source of files in a directory.
//
// The files of one process are an index, which says where each chunk is, and one or more
// shards, which hold the chunks. Each worker writes a shard of its own, because the kernel
// allows only one write to a file at a time. A program that keeps the [Listing] of the
// files, for example in a manifest, can detect any damage: the listing has the sizes of all
// files and the checksum of the index, and the index has the checksums of the chunks.
//
// Shards need not be written by the dump whose index names them. [Rewrite] makes new files for
// the pages of a process in which chunks that an earlier dump has stored, too, stay where they
// are: the shards of that dump get another name, as hard links. So each dump has all of its
// files, and needs no other.
//
// The package knows memory and files. It knows nothing of CUDA or criu.
package pages
