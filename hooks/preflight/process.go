package preflight

import (
	"fmt"
	"strings"

	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

// Process is a CUDA process as it was found.
type Process struct {
	proc.Ident
	ImagePID int    `json:"image_pid"` // the pid in the image: that of its innermost pid namespace
	Name     string `json:"name"`
	// Stopped says that the process was already stopped when we came.
	Stopped bool           `json:"stopped"`
	GPUs    []cudackpt.GPU `json:"gpus"` // all that it can see, used or not, in the driver's order
	// MemoryBytes is what the process holds on each GPU. A GPU that is not in the map is not
	// used. A nil map means that nothing is known.
	MemoryBytes map[cudackpt.UUID]uint64 `json:"memory_bytes"`
	// Known is what the kernel module told last, of all processes; nil before.
	Known nvrm.Known `json:"-"`
}

// about returns the finding, marked as one about this process.
func (p *Process) about(f Finding) Finding {
	f.PID, f.Process = p.PID, p.Name
	return f
}

// summary says what a CUDA process holds.
func (p *Process) summary() Finding {
	parts := make([]string, len(p.GPUs))
	for i, gpu := range p.GPUs {
		parts[i] = fmt.Sprintf("%s on GPU %d", mib(p.MemoryBytes[gpu.UUID]), i)
	}
	return p.about(Finding{
		Name: FindingCUDA, Severity: SeverityOK,
		Message: fmt.Sprintf("sees %d GPUs and holds %s on them: %s", len(p.GPUs), mib(p.StagedBytes()), strings.Join(parts, ", ")),
	})
}

// StagedBytes returns how much host memory the process's checkpoint will take, in bytes.
func (p *Process) StagedBytes() uint64 {
	var sum uint64
	for _, size := range p.MemoryBytes {
		sum += size
	}
	return sum
}

// memoryFinding says that it is not known how much memory the process holds.
func (p *Process) memoryFinding(listed map[cudackpt.UUID]uint64) Findings {
	if p.MemoryBytes != nil {
		return nil
	}
	message := "NVML does not list it: it holds no GPU memory, or NVML cannot see it"
	if len(listed) > 0 {
		message = "NVML does not tell how much GPU memory it holds"
	}
	return Findings{p.about(Finding{
		Name: FindingMemoryUnknown, Severity: SeverityWarning,
		Message: message + "; what a restore needs is measured when the checkpoint has moved it to the host, and counted for every GPU that it sees",
		Remedy:  "see that this host has memory for what is on its GPUs; in a virtual machine or container, the driver may have to be told to account for processes",
	})}
}
