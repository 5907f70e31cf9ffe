package main

import "fmt"

// simulatedLoads are the default loads for simulated GPUs, if they fit.
func simulatedLoads() []load { return []load{{1, gib}, {4, 256 * mib}, {8, 128 * mib}} }

// realLoads are the default loads for real GPUs, if they fit.
func realLoads() []load {
	return []load{{1, gib}, {1, 16 * gib}, {4, 4 * gib}, {8, 2 * gib}, {1, 64 * gib}}
}

// room is how much this machine has to offer, in bytes.
type room struct {
	memory    int64
	disk      int64 // free where the images go
	diskIsRAM bool  // they go to a tmpfs
	gpuMemory []int64
	simulated bool // GPU memory is main memory of this machine
}

// slack is how much memory is left for everything else.
const slack = 512 * mib

// misses returns why a load does not fit, or "".
func (r room) misses(l load) string {
	memory := l.bytes() // the staging memory of a checkpoint
	if r.simulated {
		memory += l.bytes()
	}
	if r.diskIsRAM {
		memory += l.bytes()
	}
	switch {
	case r.memory < memory+slack:
		return fmt.Sprintf("needs %s of memory, %s are available", spaced(roundUp(memory+slack)), spaced(roundUp(r.memory)))
	case r.disk < l.bytes()+slack:
		return fmt.Sprintf("needs %s where the images go, %s are free", spaced(roundUp(l.bytes()+slack)), spaced(roundUp(r.disk)))
	}
	if r.simulated {
		return "" // the simulated host is made large enough
	}
	for i, free := range r.gpuMemory {
		need := int64(l.onGPU(i, len(r.gpuMemory))) * (l.each + contextBytes)
		if free < need {
			return fmt.Sprintf("needs %s of GPU %d, %s are free", spaced(roundUp(need)), i, spaced(roundUp(free)))
		}
	}
	return ""
}

// contextBytes is the GPU memory that a CUDA context takes, generously estimated.
const contextBytes = gib

// onGPU returns how many of its processes are on GPU i when they are spread over n GPUs.
func (l load) onGPU(i, n int) int { return (l.processes - i + n - 1) / n }

func roundUp(bytes int64) int64 { return (bytes + mib - 1) / mib * mib }
