package preflight

import (
	"slices"
	"sync"

	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

// Some objects in NVIDIA's resource manager decide whether a process comes back, because a
// restore forgets them (measured on driver 580.159.04). An allocation of 512 MiB or more has an
// address in the fabric that links the GPUs; if another GPU was given access to it, the restore
// answers INVALID_VALUE. A memory pool loses the access of other GPUs without any error. Memory
// in a NUMA node of the host makes the restore answer 999. The kernel module tells about all of
// them, and the process is not touched for it.

// measuredDrivers are the drivers that package nvrm is known to understand. No answer from
// another driver is believed: a wrong one would cost the job.
var measuredDrivers = []string{"580.159.04"}

// holdingsOf asks the kernel module about processes; listed is what NVML says that each holds.
// It takes some 100 ms for a process on several GPUs, and 10 to 20 ms for any other. If quick
// is set, it skips those others. A process about which the kernel module says nothing gets nil.
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

// complete reports whether the kernel module found all the memory that NVML lists, except for 1
// GiB on each GPU: a context has up to 518 MiB for itself, and other models were not measured.
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

// holdingFindings judges what the kernel module says about a process. contexts is the number of
// GPUs on which the process has a context.
func holdingFindings(m *Process, h nvrm.Holdings, contexts int, remedy string) Findings {
	var findings Findings
	add := func(name string, severity Severity, message, remedy string) {
		findings = append(findings, m.about(Finding{Name: name, Severity: severity, Message: message, Remedy: remedy}))
	}
	if h.FabricShared > 0 {
		add(FindingPeerMemory, SeverityError, "has an allocation of 512 MiB or more that another GPU accesses: the driver would checkpoint it, and could never restore it", remedy)
	}
	if h.Pools > 0 {
		add(FindingPeerMemory, SeverityError, "has a memory pool that another GPU accesses: a restore would lose that access without a word, and the next access would fail", remedy)
	}
	// With contexts on two GPUs the driver has 4 or 5 duplicates of its own.
	if h.HostNUMA > 0 && contexts == 1 {
		add(FindingHostNUMA, SeverityError, "has memory of the driver's in a NUMA node of the host (CU_MEM_LOCATION_TYPE_HOST_NUMA): the driver would checkpoint it, and could never restore it",
			"run the job without it: with pinned host memory, for one")
	}
	if h.FabricShared == 0 && h.Fabric > 0 && len(m.GPUs) > 1 {
		add(FindingPeerMemory, SeverityWarning, "has allocations of 512 MiB or more: after a restore no other GPU can be given access to them (a first copy between two GPUs fails)", remedy)
	}
	return findings
}
