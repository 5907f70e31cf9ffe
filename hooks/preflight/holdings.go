package preflight

import (
	"slices"
	"sync"

	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

// Whether a process comes back depends on objects in NVIDIA's resource manager that
// a restore forgets (measured on driver 580.159.04): an allocation of 512 MiB or
// more has an address in the fabric that links the GPUs, and if another GPU was given
// access by it, the restore answers INVALID_VALUE; of a memory pool the access is
// gone without a word; and memory in a host's NUMA node makes the restore answer 999.
// The kernel module tells of all of them, without the process being touched.

// measuredDrivers are those of which it is known that package nvrm understands them.
// Of others nothing is believed: a wrong answer would cost the job.
var measuredDrivers = []string{"580.159.04"}

// holdingsOf asks the kernel module about processes, of which NVML lists what they hold:
// for some 100 ms about one on several GPUs, and for 10 to 20 ms about another unless
// it is to be quick. What it does not say is nil.
func holdingsOf(driver *cudackpt.Driver, processes []Process, listed []map[cudackpt.UUID]uint64, quick bool) []*nvrm.Holdings {
	all := make([]*nvrm.Holdings, len(processes))
	version, err := driver.DriverVersion()
	if err != nil || !slices.Contains(measuredDrivers, version) {
		return all
	}
	var wg sync.WaitGroup
	for i := range processes {
		several := len(listed[i]) != 1 && len(processes[i].GPUs) > 1
		if quick && !several {
			continue
		}
		wg.Go(func() {
			gap := nvrm.ShortGap
			if several {
				gap = nvrm.WidestGap
			}
			holdings, err := nvrm.Read(processes[i].PID, gap)
			if err == nil && (!several || complete(holdings, listed[i])) {
				all[i] = &holdings
			}
		})
	}
	wg.Wait()
	return all
}

// complete reports whether the memory was found that NVML lists, but for 1 GiB on each
// GPU: a context has up to 518 MiB for itself, and other models were not measured.
func complete(h nvrm.Holdings, listed map[cudackpt.UUID]uint64) bool {
	var need uint64
	for _, size := range listed {
		if size == cudackpt.UnknownMemory {
			return false
		}
		need += size - min(size, 1<<30)
	}
	return len(listed) > 0 && h.MemoryBytes >= need
}

// holdingFindings judges what the kernel module says of a process with contexts on so
// many GPUs.
func holdingFindings(m *Process, h nvrm.Holdings, contexts int, remedy string) Findings {
	var findings Findings
	add := func(name string, severity Severity, message, remedy string) {
		findings = append(findings, m.found(Finding{Name: name, Severity: severity, Message: message, Remedy: remedy}))
	}
	if h.FabricShared > 0 {
		add(FindingPeerMemory, SeverityError, "has an allocation of 512 MiB or more that another GPU accesses: the driver would checkpoint it, and could never restore it", remedy)
	}
	if h.Pools > 0 {
		add(FindingPeerMemory, SeverityError, "has a memory pool that another GPU accesses: a restore would lose that access without a word, and the next access would fail", remedy)
	}
	// With contexts on two GPUs the driver has duplicates of its own, 4 or 5.
	if h.HostNUMA > 0 && contexts == 1 {
		add(FindingHostNUMA, SeverityError, "has memory of the driver's in a NUMA node of the host (CU_MEM_LOCATION_TYPE_HOST_NUMA): the driver would checkpoint it, and could never restore it",
			"run the job without it: with pinned host memory, for one")
	}
	if h.FabricShared == 0 && h.Fabric > 0 && len(m.GPUs) > 1 {
		add(FindingPeerMemory, SeverityWarning, "has allocations of 512 MiB or more: after a restore no other GPU can be given access to them (a first copy between two GPUs fails)", remedy)
	}
	return findings
}
