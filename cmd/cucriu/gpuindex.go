package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
)

// People read GPUs by their index: that in cucriu gpus or, of an image, that in its captured
// set. It is the index that a rule of the map takes.

// uuidFlag adds the flag that shows UUIDs beside the indexes.
func uuidFlag(cmd *cobra.Command, value *bool) {
	cmd.Flags().BoolVar(value, "uuid", false, "show the UUIDs of the GPUs as well")
}

// gpuIndex finds the index of a GPU.
type gpuIndex map[cudackpt.UUID]int

// indexOfHost returns the indexes of cucriu gpus; none if the driver does not tell.
func indexOfHost(hook *hooks.Hook) gpuIndex {
	driver, err := hook.OpenDriver()
	if err != nil {
		return nil
	}
	gpus, err := driver.HostGPUs()
	if err != nil {
		return nil
	}
	return indexOf(gpus)
}

func indexOf(gpus []cudackpt.GPU) gpuIndex {
	index := make(gpuIndex)
	for i, gpu := range gpus {
		index[gpu.UUID] = i
	}
	return index
}

// names returns the indexes of GPUs, such as "0,2-5". One that has none is "?".
func (x gpuIndex) names(uuids []cudackpt.UUID) string {
	var indexes []int
	for _, uuid := range uuids {
		if i, known := x[uuid]; known {
			indexes = append(indexes, i)
		}
	}
	var names []string
	missing := len(indexes) < len(uuids)
	slices.Sort(indexes)
	for len(indexes) > 0 {
		n := 1
		for n < len(indexes) && indexes[n] == indexes[0]+n {
			n++
		}
		name := strconv.Itoa(indexes[0])
		if n > 1 {
			name += "-" + strconv.Itoa(indexes[n-1])
		}
		names, indexes = append(names, name), indexes[n:]
	}
	if missing {
		names = append(names, "?")
	}
	return strings.Join(names, ",")
}

// memory says how much a process holds on which GPUs, such as "18 MiB on 0,1".
func (x gpuIndex) memory(held map[cudackpt.UUID]uint64) string {
	if len(held) == 0 {
		return "none"
	}
	var sum uint64
	for _, bytes := range held {
		if bytes == cudackpt.UnknownMemory {
			return "? on " + x.names(slices.Collect(maps.Keys(held)))
		}
		sum += bytes
	}
	return mib(sum) + " on " + x.names(slices.Collect(maps.Keys(held)))
}

// details has a line for each GPU on which a process holds memory, with its UUID.
func (x gpuIndex) details(held map[cudackpt.UUID]uint64) string {
	var lines []string
	for _, uuid := range slices.SortedFunc(maps.Keys(held), func(a, b cudackpt.UUID) int { return x.of(a) - x.of(b) }) {
		size := mib(held[uuid])
		if held[uuid] == cudackpt.UnknownMemory {
			size = "?"
		}
		lines = append(lines, fmt.Sprintf("%s on %s, %v", size, x.names([]cudackpt.UUID{uuid}), uuid))
	}
	return strings.Join(lines, "\n")
}

func (x gpuIndex) of(uuid cudackpt.UUID) int {
	if i, known := x[uuid]; known {
		return i
	}
	return len(x)
}
