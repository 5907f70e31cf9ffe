package preflight

import (
	"fmt"
	"slices"

	"cucriu/criuutil/proc"
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
// of the processes may have ended. listed is what NVML lists for each of them; tree has their
// pids and those of the processes beside them.
func LossFindings(driver *cudackpt.Driver, runDir string, processes []Process, listed []map[cudackpt.UUID]uint64, tree []int) (Findings, error) {
	kernel := askKernel(driver, runDir, processes, listed)
	findings, err := peersOf(processes, listed, kernel.holdings)
	if err != nil {
		return nil, err
	}
	if kernel.unknown == nil {
		for _, share := range kernel.shares {
			findings = append(findings, sharingFinding(processes, share))
		}
		return findings, nil
	}
	nccl, err := ncclOf(driver, processes, listed, tree)
	findings = append(findings, nccl...)
	if err != nil || len(nccl.Of(SeverityError)) > 0 {
		return findings, err
	}
	return append(findings, unknownSharing(processes, listed, kernel.unknown)...), nil
}

// sharingFinding says that a process shares device memory.
func sharingFinding(processes []Process, share nvrm.Share) Finding {
	at := slices.IndexFunc(processes, func(p Process) bool { return p.PID == share.PID })
	f := Finding{
		Name: FindingSharing, Severity: SeverityError,
		Message: "shares device memory with " + partner(processes, share.With) + ": the driver would checkpoint that, and could never restore it",
		Remedy: "let the processes close what they have imported before the dump (cuIpcCloseMemHandle, cuMemRelease; in PyTorch, send tensors through the host); " +
			"if it is NCCL's, start the job with NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 in its environment",
	}
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
	name := fmt.Sprintf("process %d", pid)
	if status, err := proc.ReadStatus(pid); err == nil {
		name += " (" + status.Name + ")"
	}
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
	return Findings{having[0].about(Finding{
		Name: FindingSharing, Severity: SeverityError,
		Message: fmt.Sprintf("may share device memory with %s, which the driver would checkpoint and could never restore; whether it does cannot be told: %v", partner(processes, having[1].PID), why),
		Remedy:  "run cucriu check --calibrate, once after each boot; override this if they share none",
	})}
}
