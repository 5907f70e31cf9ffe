package criuutil

// hugePage is how slices are aligned, so that none splits a huge page.
const hugePage = 2 << 20 // bytes

// cut cuts ranges into slices for so many threads: small enough that all
// threads have work until the end, large enough that the stops of a thread
// between two of them do not count.
func cut(ranges []Range, threads int) []Range {
	const perThread, largest = 4, 64 << 20
	var total uint64
	for _, r := range ranges {
		total += r.Size()
	}
	size := total / uint64(perThread*threads) / hugePage * hugePage
	size = min(max(size, hugePage), largest)
	var slices []Range
	for _, r := range ranges {
		for start := r.Start; start < r.End; {
			end := min(r.End, (start+size)/hugePage*hugePage)
			slices = append(slices, Range{start, end})
			start = end
		}
	}
	return slices
}
