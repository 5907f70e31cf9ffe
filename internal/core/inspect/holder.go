package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// Holder is a process that holds NVIDIA device files, and has no CUDA state that the driver could
// save. criu cannot dump it as it is.
//
// It is usually a child that a CUDA process forked without exec, such as a worker of PyTorch's
// DataLoader. Such a child inherits the driver's open files and mappings, and CUDA does not
// work in it. So they can be taken from it. What a user of NVML or of graphics holds is in use.
type Holder struct {
	proc.Ident
	Name string
	held inventory.DriverUse
}

// about returns the finding, marked as one about this process.
func (h *Holder) about(f preflight.Finding) preflight.Finding {
	f.PID, f.Process = h.PID, h.Name
	return f
}

// Mappings returns the memory at which device files are mapped.
func (h *Holder) Mappings() []proc.Range { return h.held.Mappings }

// Descriptors returns the descriptors of device files.
func (h *Holder) Descriptors() ([]inject.Descriptor, error) {
	descriptors := make([]inject.Descriptor, len(h.held.Descriptors))
	for i, fd := range h.held.Descriptors {
		info, err := proc.ReadDescriptor(h.PID, strconv.Itoa(fd))
		if err != nil {
			return nil, err
		}
		descriptors[i] = inject.Descriptor{FD: fd, CloseOnExec: info.Flags&unix.O_CLOEXEC != 0}
	}
	return descriptors, nil
}

// through names the libraries by which device files may have been opened.
func through(u inventory.DriverUse) string {
	if len(u.Openers) == 0 {
		return ""
	}
	return fmt.Sprintf(" (with %v loaded)", u.Openers)
}

// holderFindings judges all holders of a tree that has these CUDA processes. The forked children
// among them, if there are several, have one finding.
func holderFindings(ctx context.Context, driver *cudackpt.Driver, holders []*Holder, cuda []Process) (preflight.Findings, error) {
	var findings, children preflight.Findings
	for _, h := range holders {
		f, err := h.judgeRunning(ctx, driver, cuda)
		switch {
		case errors.Is(err, proc.ErrGone) || errors.Is(err, errTransient):
		case err != nil:
			return nil, err
		case f.Name == preflight.FindingForkedChild:
			children = append(children, f)
		default:
			findings = append(findings, f)
		}
	}
	if n := len(children); n > 1 {
		children = preflight.Findings{preflight.New(preflight.FindingForkedChild,
			fmt.Sprintf("%d processes (the first is %d) were forked from CUDA processes and hold their GPU devices, which they cannot use", n, children[0].PID), "")}
	}
	return append(findings, children...), nil
}

// errTransient says that a process shares its memory with a CUDA process, as a child does between
// vfork and exec. Nothing can be said about it yet.
var errTransient = errors.New("shares its memory with a CUDA process, as between vfork and exec: dump again")

// judgeRunning is Judge for a process that may run meanwhile, and execute or end: a refusal
// counts only if it is made twice of what the process holds.
func (h *Holder) judgeRunning(ctx context.Context, driver *cudackpt.Driver, cuda []Process) (f preflight.Finding, err error) {
	for range 2 {
		if f, err = h.Judge(ctx, driver, cuda); f.Severity != preflight.SeverityError || err != nil {
			return f, err
		}
		again, err := inventory.Now(h.PID)
		if err != nil {
			return f, err
		}
		if h.held = again.Driver(); len(h.held.Devices) == 0 {
			return f, fmt.Errorf("%v no longer holds a device: %w", h, proc.ErrGone)
		}
	}
	return f, nil
}

// Judge says whether a dump can take from a process what it holds. If it cannot, the finding is
// an error. cuda are the CUDA processes of its tree. Judge fails with [proc.ErrGone] if the process
// has ended, and fails if it is just executing another program.
func (h *Holder) Judge(ctx context.Context, driver *cudackpt.Driver, cuda []Process) (preflight.Finding, error) {
	f, err := h.judge(ctx, driver, cuda)
	// A process that ends loses its memory before its descriptors.
	if err == nil && f.Severity == preflight.SeverityError && h.ends() {
		err = fmt.Errorf("%v: %w", h, proc.ErrGone)
	}
	return h.about(f), err
}

func (h *Holder) judge(ctx context.Context, driver *cudackpt.Driver, cuda []Process) (preflight.Finding, error) {
	for i := range cuda {
		memory, files, err := proc.SharedTables(h.PID, cuda[i].PID)
		switch {
		case err != nil:
			return preflight.Finding{}, err
		case memory:
			return preflight.Finding{}, fmt.Errorf("%v (%s): %w", h, h.Name, errTransient)
		case files:
			return preflight.New(preflight.FindingNVIDIADevice, fmt.Sprintf("shares its open files with CUDA process %d (clone with CLONE_FILES): what is closed in one is closed in the other", cuda[i].PID),
				"end it before the dump"), nil
		}
	}
	var f preflight.Finding
	origin, err := h.origin(cuda)
	switch {
	case err != nil:
		return preflight.Finding{}, err
	case origin != 0:
		f = preflight.New(preflight.FindingForkedChild, fmt.Sprintf("was forked from CUDA process %d and holds its GPU devices, which it cannot use", origin), "")
	case listsAny(cuda) && h.hasOnlyLooked(ctx, driver):
		f = h.lookedFinding()
	default:
		return preflight.New(preflight.FindingNVIDIADevice, fmt.Sprintf("holds %v", h.held.Devices)+through(h.held)+
			", and no CUDA state that the driver could save: a user of NVML or of graphics, "+
			"a process that is just starting to use CUDA, or a child forked from a CUDA process that has since been suspended or is not in the tree; criu cannot dump it", ""), nil
	}
	if null, err := proc.IsNull(filepath.Join("/proc", strconv.Itoa(h.PID), "root", os.DevNull)); err != nil || !null {
		return preflight.New(preflight.FindingNVIDIADevice, fmt.Sprintf("has no %s, which is to replace the GPU devices that it holds", os.DevNull),
			"create that device in its /dev"), nil
	}
	return f, nil
}

// listsAny reports whether NVML lists one of the processes, so that NVML can see them.
func listsAny(processes []Process) bool {
	return slices.ContainsFunc(processes, func(p Process) bool { return len(p.MemoryBytes) > 0 })
}

// hasOnlyLooked reports whether the process has looked for GPUs and computes nothing there. It
// means something only if NVML can see the tree's processes.
func (h *Holder) hasOnlyLooked(ctx context.Context, driver *cudackpt.Driver) bool {
	if !h.held.LookedByOpenCL() {
		return false
	}
	listed, err := driver.ProcessMemory(ctx, h.PID)
	return err == nil && len(listed) == 0
}

func (h *Holder) lookedFinding() preflight.Finding {
	return h.about(preflight.Warning(preflight.FindingNVIDIADevice, "has looked for GPUs with OpenCL, as hwloc does for Open MPI, and keeps their devices open: a dump removes them, and OpenCL no longer works in it",
		"nothing needs to be done if it does not use OpenCL; with HWLOC_COMPONENTS=-opencl in its environment hwloc does not use OpenCL"))
}

const withoutThat = "run it without that"

// Leftover returns a CUDA process that still holds device files although it is checkpointed;
// nil if it holds none. The driver gives up what belongs to CUDA and to NVML, and nothing else.
func Leftover(m *Process) (*Holder, error) {
	p, err := inventory.Now(m.PID)
	if err != nil || len(p.Driver().Devices) == 0 {
		return nil, err
	}
	return &Holder{Ident: m.Ident, Name: m.Name, held: p.Driver()}, nil
}

// JudgeLeftover says whether a dump can take from a checkpointed process what it still holds. If
// not, the finding is an error. listed says that NVML has listed processes of its tree before.
func (h *Holder) JudgeLeftover(ctx context.Context, driver *cudackpt.Driver, listed bool) preflight.Finding {
	if listed && h.hasOnlyLooked(ctx, driver) {
		return h.lookedFinding()
	}
	return h.about(preflight.New(preflight.FindingNVIDIADevice,
		fmt.Sprintf("still holds %v after its checkpoint%s: it uses the GPU through something other than CUDA, "+
			"which the driver does not save and criu cannot dump", h.held.Devices, through(h.held)), withoutThat))
}

// besideFinding warns of a library in a CUDA process that may hold device files of its own.
func (h *Holder) besideFinding() preflight.Findings {
	switch {
	case len(h.held.Openers) == 0:
		return nil
	case h.held.LookedByOpenCL():
		return preflight.Findings{h.lookedFinding()}
	}
	return preflight.Findings{h.about(preflight.Warning(preflight.FindingNVIDIADevice,
		fmt.Sprintf("has %v loaded beside CUDA: if it holds GPU devices through that, the driver does not save them, "+
			"and the dump fails; the job then keeps running", h.held.Openers), withoutThat))}
}

func (h *Holder) ends() bool {
	process, err := proc.Reopen(h.Ident)
	if err != nil {
		return true
	}
	defer process.Close()
	return process.Exiting()
}

// origin returns the CUDA process from which a holder has inherited all that it holds; 0 if it
// has something of its own. A process that is about to initialize CUDA has opened its files
// itself.
func (h *Holder) origin(cuda []Process) (int, error) {
	if !h.held.Libcuda {
		return 0, nil // a fork copies the mapping, and it is lost with exec
	}
	if len(h.held.Descriptors) == 0 {
		return h.ancestor(cuda)
	}
	var origin int
	for _, fd := range h.held.Descriptors {
		origin = 0
		for i := range cuda {
			same, err := proc.SameFile(h.PID, fd, cuda[i].PID, fd)
			if err != nil {
				return 0, err
			}
			if same {
				origin = cuda[i].PID
				break
			}
		}
		if origin == 0 {
			return 0, nil
		}
	}
	return origin, nil
}

// ancestor returns the nearest ancestor that is one of the CUDA processes; 0 if none is.
func (h *Holder) ancestor(cuda []Process) (int, error) {
	for pid := h.PID; pid > 1; {
		status, err := proc.ReadStatus(pid)
		if errors.Is(err, proc.ErrGone) && pid != h.PID {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		pid = status.PPID
		if slices.ContainsFunc(cuda, func(p Process) bool { return p.PID == pid }) {
			return pid, nil
		}
	}
	return 0, nil
}
