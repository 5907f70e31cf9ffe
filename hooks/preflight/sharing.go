package preflight

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

// A process that has imported device memory of another one, by cuIpc, by a handle of the VMM
// API or from an exported pool, is locked and checkpointed without a complaint, and its restore
// then answers 1, 801 or 304 whatever is tried, even if the exporter has ended (measured on
// driver 580.159.04). Its exporter is restored, without what they shared. Host memory of the
// driver (NCCL's SHM transport) loses both. An export that nobody opened, or that was closed
// again, does no harm, nor does host memory that several processes have registered.

// LossFindings looks in processes for what the driver would checkpoint and never restore. Some
// of the processes may have ended. listed is what NVML lists for each of them; pids are theirs
// and those of the processes beside them.
func LossFindings(driver *cudackpt.Driver, runDir string, processes []Process, listed []map[cudackpt.UUID]uint64, pids []int) (Findings, error) {
	return treeOf(pids).lossFindings(driver, runDir, processes, listed)
}

func (t *tree) lossFindings(driver *cudackpt.Driver, runDir string, processes []Process, listed []map[cudackpt.UUID]uint64) (Findings, error) {
	kernel := askKernel(driver, runDir, processes, listed)
	findings, err := t.peersOf(processes, listed, kernel.holdings)
	if err != nil {
		return nil, err
	}
	if kernel.unknown == nil {
		for _, share := range kernel.shares {
			findings = append(findings, sharingFinding(processes, share))
		}
		return findings, nil
	}
	nccl, err := t.ncclOf(driver, processes, listed)
	findings = append(findings, nccl...)
	if err != nil || len(nccl.Of(SeverityError)) > 0 {
		return findings, err
	}
	return append(findings, unknownSharing(processes, listed, kernel.unknown)...), nil
}

// sharingFinding says that a process shares device memory.
func sharingFinding(processes []Process, share nvrm.Share) Finding {
	at := slices.IndexFunc(processes, func(p Process) bool { return p.PID == share.PID })
	f := refuse(FindingSharing, "shares device memory with "+partner(processes, share.With)+": the driver would checkpoint that, and could never restore it",
		"let the processes close what they have imported before the dump (cuIpcCloseMemHandle, cuMemRelease; in PyTorch, send tensors through the host); "+
			"if it is NCCL's, start the job with NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 in its environment")
	if share.Maybe {
		f.Severity = SeverityWarning
		f.Message = "may share device memory with " + partner(processes, share.With) + ", which has imported some: a restore would silently end that"
	}
	return processes[at].about(f)
}

// partner names the other process that has the memory.
func partner(processes []Process, pid int) string {
	if pid == 0 {
		return "another process, which cannot be told"
	}
	name := processName(pid)
	if !slices.ContainsFunc(processes, func(p Process) bool { return p.PID == pid }) {
		name += ", outside of what is dumped"
	}
	return name
}

// unknownSharing refuses processes of which it cannot be told whether they share memory.
func unknownSharing(processes []Process, listed []map[cudackpt.UUID]uint64, why error) Findings {
	var having []*Process
	for i := range processes {
		if !holdsNothing(listed, i) {
			having = append(having, &processes[i])
		}
	}
	if len(having) < 2 {
		return nil
	}
	return Findings{having[0].about(refuse(FindingSharing, fmt.Sprintf("may share device memory with %s, which the driver would checkpoint and could never restore; whether it does cannot be told: %v", partner(processes, having[1].PID), why),
		"run cucriu check --calibrate, once after each boot; override this if they share none"))}
}

// Some objects in NVIDIA's resource manager decide whether a process comes back, because a
// restore forgets them (measured on driver 580.159.04). An allocation of 512 MiB or more has an
// address in the fabric that links the GPUs; if another GPU was given access to it, the restore
// answers INVALID_VALUE. A memory pool loses the access of other GPUs without any error. Memory
// in a NUMA node of the host makes the restore answer 999. The kernel module tells about all of
// them, and the process is not touched for it.

// measuredDrivers are the drivers on which this was measured.
var measuredDrivers = []string{"580.159.04"}

// comparedBranches are the drivers whose open kernel modules have the same ioctl, commands,
// parameters and classes as package nvrm, in all of their 57 releases from 570.86.15 to
// 595.45.04, and count what is imported by the same rule. What a restore loses may differ. Of
// memory, modules before 580 tell the address only to the kernel, so sharers are not paired.
var comparedBranches = []string{"570", "575", "580", "590", "595"}

// kernelAnswer is what the kernel module says of processes, as far as it is believed: a wrong
// answer would cost the job.
type kernelAnswer struct {
	holdings []*nvrm.Holdings // nil where nothing is known
	shares   []nvrm.Share
	unknown  error // why it is not known who shares memory
}

// askKernel asks the kernel module about processes; listed is what NVML says that each holds.
// It takes some 100 ms for a process on several GPUs, and 10 to 20 ms for any other. The first
// time it takes the longer, the more objects the process has ever had.
func askKernel(driver *cudackpt.Driver, runDir string, processes []Process, listed []map[cudackpt.UUID]uint64) kernelAnswer {
	answer := kernelAnswer{holdings: make([]*nvrm.Holdings, len(processes))}
	version, err := driver.DriverVersion()
	if err != nil {
		answer.unknown = err
		return answer
	}
	branch, _, _ := strings.Cut(version, ".")
	calibrated, failure := readCalibration(runDir, version)
	switch {
	case failure != "":
		answer.unknown = fmt.Errorf("cucriu check --calibrate found that the kernel module of driver %s does not tell it: %s", version, failure)
		return answer
	case !calibrated && !slices.Contains(measuredDrivers, version) && !slices.Contains(comparedBranches, branch):
		answer.unknown = fmt.Errorf("nobody has compared driver %s: run cucriu check --calibrate", version)
		return answer
	}
	var pids, gaps, at []int
	var known nvrm.Known
	for i := range processes {
		if unix.Kill(processes[i].PID, 0) != nil {
			continue // it has ended
		}
		known = processes[i].Known
		gap := nvrm.ShortGap
		if len(listed[i]) != 1 && len(processes[i].GPUs) > 1 && !holdsNothing(listed, i) {
			gap = nvrm.WidestGap
		}
		pids, gaps, at = append(pids, processes[i].PID), append(gaps, gap), append(at, i)
	}
	told := nvrm.Ask(driver.Ioctl(), pids, gaps, known)
	for i := range processes {
		processes[i].Known = told.Known
	}
	answer.shares, answer.unknown = told.Shares, told.Err
	if calibrated || slices.Contains(measuredDrivers, version) {
		for i, holdings := range told.Holdings {
			answer.holdings[at[i]] = holdings
		}
	}
	return answer
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
