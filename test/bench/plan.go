package main

import "fmt"

// What is measured unless told otherwise, as far as it fits: on simulated GPUs …
func simulatedLoads() []load { return []load{{1, gib}, {4, 256 * mib}, {8, 128 * mib}} }

// … and on real ones.
func realLoads() []load {
	return []load{{1, gib}, {1, 16 * gib}, {4, 4 * gib}, {8, 2 * gib}, {1, 64 * gib}}
}

// room is what this machine has to offer, in bytes.
type room struct {
	memory    int64
	disk      int64 // free where the images go
	diskIsRAM bool  // they go to a tmpfs
	gpuMemory []int64
	simulated bool // GPU memory is memory of this machine
}

// slack is left for everything else.
const slack = 512 * mib

// misses says why a load does not fit, or nothing.
func (r room) misses(l load) string {
	memory := l.bytes() // staged, while it is checkpointed
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
		return "" // the simulated host is made to fit
	}
	for i, free := range r.gpuMemory {
		need := int64(l.onGPU(i, len(r.gpuMemory))) * (l.each + contextBytes)
		if free < need {
			return fmt.Sprintf("needs %s of GPU %d, %s are free", spaced(roundUp(need)), i, spaced(roundUp(free)))
		}
	}
	return ""
}

// contextBytes is what a CUDA context costs on its GPU, generously.
const contextBytes = gib

// onGPU is how many of its processes are on a GPU when they are spread over n.
func (l load) onGPU(i, n int) int { return (l.processes - i + n - 1) / n }

func roundUp(bytes int64) int64 { return (bytes + mib - 1) / mib * mib }
