package criuimage

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// pidsForUs is how many pids in a row the programs that restore a job are given. criu, the hook
// and the watcher have fewer than a hundred threads.
const pidsForUs = 4096

// FreePIDs finds where the pids of a new pid namespace must begin, at first or later, so that the
// programs that restore an image there take none of the job's.
func FreePIDs(dir string, first int) (int, error) {
	tree, err := ReadTree(dir)
	if err != nil {
		return 0, err
	}
	data, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("pid_max: %w", err)
	}
	return gapIn(tree.Numbers(), first, most)
}

// gapIn returns the lowest number from first on that begins a row of unused numbers below most.
func gapIn(used []int, first, most int) (int, error) {
	slices.Sort(used)
	at := first
	for _, n := range append(used, most) {
		if n-at >= pidsForUs {
			return at, nil
		}
		at = max(at, n+1)
	}
	return 0, fmt.Errorf("the job has so many pids that there are no %d consecutive free ones below %d (kernel.pid_max)", pidsForUs, most)
}
