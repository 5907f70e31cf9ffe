package inspect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/nvrm"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
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
	// Listed is what NVML says that it holds on each GPU on which it has a context. Empty if NVML does
	// not list it; nil if NVML was not asked, or did not answer.
	Listed map[cudackpt.UUID]uint64 `json:"-"`
	// Served says that the process shares memory with others, and that their libraries take it down and put it up again.
	Served bool `json:"-"`
	// Spared is how much of MemoryBytes a dump need not copy, as far as the library in the process has counted it.
	Spared uint64 `json:"-"`
	// Known is what the kernel module told last, of all processes; nil before.
	Known nvrm.Known `json:"-"`
}

// about returns the finding, marked as one about this process.
func (p *Process) about(f preflight.Finding) preflight.Finding {
	f.PID, f.Process = p.PID, p.Name
	return f
}

// summary says what a CUDA process holds.
func (p *Process) summary() preflight.Finding {
	parts := make([]string, len(p.GPUs))
	for i, gpu := range p.GPUs {
		parts[i] = fmt.Sprintf("%s on GPU %d", mib(p.MemoryBytes[gpu.UUID]), i)
	}
	return p.about(preflight.Fine(preflight.FindingCUDA, fmt.Sprintf("sees %s and holds %s of GPU memory: %s", units.Count(len(p.GPUs), "GPU"), mib(p.StagedBytes()), strings.Join(parts, ", "))))
}

// StagedBytes returns how much host memory the process's checkpoint will take, in bytes.
func (p *Process) StagedBytes() uint64 {
	var sum uint64
	for _, size := range p.MemoryBytes {
		sum += size
	}
	return sum - min(sum, p.Spared)
}

// memoryFindings says of which processes it is not known how much memory they hold.
func memoryFindings(processes []Process) (findings preflight.Findings) {
	for i := range processes {
		p := &processes[i]
		if p.MemoryBytes != nil || p.Listed == nil || holdsNothing(processes, i) { // nil: there is an error about it
			continue
		}
		message := "NVML does not list it: it holds no GPU memory, or NVML cannot see it"
		if len(p.Listed) > 0 {
			message = "NVML does not report how much GPU memory it holds"
		}
		findings = append(findings, p.about(preflight.New(preflight.FindingMemoryUnknown, message+"; the memory needed for a restore is measured once the checkpoint has moved it to the host, and assumed for every GPU that it sees", "")))
	}
	return findings
}

// askNVML asks NVML how many bytes the process holds on each GPU. It notes what its checkpoint
// will move to the host and what its restore will take. NVML does not list a GPU on which the
// process has no context. In some containers and virtual machines it does not list the process
// at all; then nothing is known until the checkpoint has moved the memory.
func (p *Process) askNVML(ctx context.Context, driver *cudackpt.Driver) error {
	listed, err := driver.ProcessMemory(ctx, p.PID)
	if err != nil {
		return fmt.Errorf("cannot determine how much GPU memory is in use, and so whether there is enough for a restore: %w", err)
	}
	p.Listed, p.MemoryBytes = listed, nil
	if len(listed) > 0 && !slices.Contains(slices.Collect(maps.Values(listed)), cudackpt.UnknownMemory) {
		p.MemoryBytes = listed
	}
	return nil
}

// Measure notes how much memory each process holds on each GPU.
func Measure(ctx context.Context, driver *cudackpt.Driver, processes []Process) error {
	for i := range processes {
		p := &processes[i]
		if err := p.askNVML(ctx, driver); err != nil {
			return fmt.Errorf("process %d (%s): %w", p.PID, p.Name, err)
		}
	}
	return nil
}

// VisibleGPUs returns the GPUs that a process can see. It fails when ctx ends: the process has
// its own /dev, which may be on a file system whose server does not answer.
func VisibleGPUs(ctx context.Context, driver *cudackpt.Driver, pid int) ([]cudackpt.GPU, error) {
	type answer struct {
		gpus []cudackpt.GPU
		err  error
	}
	answered := make(chan answer, 1) // buffered, since nobody may be receiving any more
	go func() {
		gpus, err := driver.VisibleGPUs(pid)
		answered <- answer{gpus, err}
	}()
	select {
	case a := <-answered:
		return a.gpus, a.err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) { // somebody has given up, which says nothing about /dev
			return nil, fmt.Errorf("%w: not all of its GPUs have been found", context.Cause(ctx))
		}
		return nil, fmt.Errorf("its /dev does not answer (a FUSE or network file system whose server hangs?): look at /proc/%d/root/dev, and end that server: %w", pid, ctx.Err())
	}
}

// DifferentGPUs refuses processes that see different GPUs. Their GPUs could be paired only for
// one process at a time, and then two processes that share a GPU could end up on different
// ones.
func DifferentGPUs(processes []Process) preflight.Findings {
	for i := range processes {
		if m := &processes[i]; !slices.Equal(m.GPUs, processes[0].GPUs) {
			return preflight.Findings{m.about(preflight.New(preflight.FindingDifferentGPUs, fmt.Sprintf("sees different GPUs (%d) than process %d (%s) beside it (%d), and a restore could not map them together",
				len(m.GPUs), processes[0].PID, processes[0].Name, len(processes[0].GPUs)), ""))}
		}
	}
	return nil
}

// StateFindings refuses a CUDA process that is not in the running state.
func StateFindings(m *Process, state cudackpt.State) preflight.Findings {
	if state == cudackpt.StateRunning {
		return nil
	}
	what := fmt.Sprintf("is in the CUDA state %v", state)
	switch state {
	case cudackpt.StateLocked:
		what = "is locked, by cucriu lock or another tool"
	case cudackpt.StateCheckpointed:
		what = "was checkpointed, and nothing in this run directory says by what"
	}
	return preflight.Findings{m.about(preflight.New(preflight.FindingCUDAState, what, StateRemedy(m.PID, state)))}
}

// StateRemedy says how a process is recovered from a CUDA state in which no session of ours holds
// it.
func StateRemedy(pid int, state cudackpt.State) string {
	switch state {
	case cudackpt.StateLocked:
		return fmt.Sprintf("cucriu unlock -p %d lets it run again; if another tool is working on it, wait for that", pid)
	case cudackpt.StateCheckpointed:
		if parked, err := inject.LooksParked(pid); err == nil && parked { // by cucriu, and --force is of no use
			return fmt.Sprintf("resume it with the CUCRIU_RUN_DIR with which it was suspended; "+
				"if criu has restored it without cucriu-hook, it can never run: kill -9 %d, and restore its image with cucriu restore", pid)
		}
		return fmt.Sprintf("resume it with the tool that did it, or with the CUCRIU_RUN_DIR with which it was suspended; otherwise free its GPUs, and try cucriu resume -p %d --force", pid)
	case cudackpt.StateFailed:
		return "the driver cannot restore it: end it, and restore it from an image"
	}
	return "wait until that is over"
}
