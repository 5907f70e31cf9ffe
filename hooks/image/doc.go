// Package image knows what an image of a CUDA job is: the directory that is complete
// or absent, CRIU's own images in it, the manifest beside them, and the pages with the
// GPU state that went around CRIU. It reads them as something a stranger may have
// filled, and refuses what no dump can have written. It knows no process that runs.
package image
