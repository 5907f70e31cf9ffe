// Package image shows an image to programs that did not make it: which CUDA processes it holds, whether it is
// undamaged, where the time of its dump went, what criu must be told to restore it, and how a trial restore of it
// went. Package checkpoint makes images and restores them.
package image
