package gpumap

import "cucriu/cudackpt"

// UUIDsOf returns the UUIDs of GPUs, in the same order.
func UUIDsOf(gpus []cudackpt.GPU) []cudackpt.UUID {
	uuids := make([]cudackpt.UUID, len(gpus))
	for i, gpu := range gpus {
		uuids[i] = gpu.UUID
	}
	return uuids
}

// Union lists every GPU that any of the processes saw, in order of first appearance.
func Union(lists ...[]cudackpt.GPU) []cudackpt.GPU {
	var union []cudackpt.GPU
	seen := make(map[cudackpt.UUID]bool)
	for _, list := range lists {
		for _, gpu := range list {
			if !seen[gpu.UUID] {
				seen[gpu.UUID] = true
				union = append(union, gpu)
			}
		}
	}
	return union
}
