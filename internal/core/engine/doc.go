// Package engine takes CUDA processes off their GPUs and back: a [Suspension] locks, stops, parks and
// checkpoints them, and [BringBack] is the one way back, from whatever state they are in. It must
// not know criu's stages, nor decide whether a job is to be restored.
package engine
