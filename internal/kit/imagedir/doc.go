// Package imagedir knows what the image of a CUDA job is: a directory that is complete or absent,
// CRIU's own images in it, the manifest and the checksums beside them, and the pages: the GPU state that
// was written without CRIU. It does not trust what it reads, since anybody may have filled the
// directory, and refuses what no dump can have written. It must not know running processes.
package imagedir
