package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"cucriu/cudackpt"
	"cucriu/internal/proc"
)

// TreeInspection is what was found in a tree of processes. Nothing was touched to find it.
type TreeInspection struct {
	PIDs      []int
	Processes []Process
	Findings  Findings
	tree      *tree
}

// UsesCUDA reports whether the tree holds anything to do or to refuse. A tree without is left to
// criu.
func (in *TreeInspection) UsesCUDA() bool { return len(in.Processes) > 0 || len(in.Findings) > 0 }

// InspectTree walks the tree below root. It finds the CUDA processes, and everything that would
// make the dump fail after GPU state has been touched. imageDir is where the images are to go;
// it is empty if that is not known. runDir is the run directory. InspectTree calls open when it meets the first process that
// has libcuda mapped: a tree without CUDA needs no driver.
func InspectTree(ctx context.Context, root int, imageDir, runDir string, open func() (*cudackpt.Driver, error)) (*TreeInspection, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	t := treeOf(pids)
	in := &TreeInspection{tree: t}
	var holders []*Holder
	for _, pid := range pids {
		l, err := t.look(pid)
		var p ProcessInspection
		if err == nil {
			p, err = l.inspect(ctx, open)
		}
		if errors.Is(err, proc.ErrGone) && pid != root {
			t.looks = slices.DeleteFunc(t.looks, func(l *look) bool { return l.pid == pid })
			in.Findings = append(in.Findings, endedFindings(pid)...)
			continue
		}
		if err != nil {
			return nil, err
		}
		in.PIDs = append(in.PIDs, pid)
		in.Findings = slices.Concat(in.Findings, p.Findings, l.generalFindings())
		if p.Process != nil {
			in.Processes = append(in.Processes, *p.Process)
		}
		if p.Holder != nil {
			holders = append(holders, p.Holder)
		}
	}
	in.Findings = slices.Concat(in.Findings, t.namespaceFindings(), t.unsupportedFindings(), t.removedFindings(), t.sharingFindings())
	var driver *cudackpt.Driver
	if len(holders)+len(in.Processes) > 0 {
		if driver, err = open(); err != nil {
			return nil, err
		}
	}
	listed := make([]map[cudackpt.UUID]uint64, len(in.Processes))
	for i := range in.Processes {
		m := &in.Processes[i]
		if listed[i], err = m.askNVML(ctx, driver); err != nil {
			in.Findings = append(in.Findings, m.about(found(FindingMemoryUnknown, err, "see nvidia-smi on this host")))
			continue
		}
		in.Findings = append(in.Findings, m.memoryFinding(listed[i])...)
	}
	ofHolders, err := holderFindings(ctx, driver, holders, in.Processes)
	if err != nil {
		return nil, err
	}
	in.Findings = append(in.Findings, ofHolders...)
	if !in.UsesCUDA() {
		return in, nil
	}
	in.Findings = append(in.Findings, DifferentGPUs(in.Processes)...)
	if len(in.Processes) == 0 {
		return in, nil
	}
	losses, err := t.lossFindings(driver, runDir, in.Processes, listed)
	if err != nil {
		return nil, err
	}
	resources, err := resourceFindings(proc.System{}, in, imageDir, os.Getpid())
	if err != nil {
		return nil, err
	}
	in.Findings = slices.Concat(in.Findings, resources, losses)
	return in, nil
}

// InspectNamed finds what cannot be restored in processes that the user has named, rather than
// in a tree. A suspend uses it.
func InspectNamed(ctx context.Context, driver *cudackpt.Driver, runDir string, processes []Process) (Findings, error) {
	listed, err := Measure(ctx, driver, processes)
	if err != nil {
		return nil, err
	}
	pids := make([]int, len(processes))
	for i, p := range processes {
		pids[i] = p.PID
	}
	losses, err := LossFindings(driver, runDir, processes, listed, pids)
	return slices.Concat(DifferentGPUs(processes), losses), err
}

// ProcessInspection is what was found about one process, and its use of the NVIDIA driver.
type ProcessInspection struct {
	Name     string
	Process  *Process // nil if it is not a CUDA process
	Holder   *Holder  // nil if it is a CUDA process, or holds nothing of the driver
	Findings Findings
}

// InspectProcess looks at one process and its use of the NVIDIA driver.
func InspectProcess(ctx context.Context, pid int, open func() (*cudackpt.Driver, error)) (ProcessInspection, error) {
	l, err := lookAt(pid)
	if err != nil {
		return ProcessInspection{}, err
	}
	return l.inspect(ctx, open)
}

func (l *look) inspect(ctx context.Context, open func() (*cudackpt.Driver, error)) (ProcessInspection, error) {
	pid, held := l.pid, l.driverUse()
	p := ProcessInspection{Name: l.status.Name}
	if !held.libcuda && len(held.devices) == 0 {
		return p, nil
	}
	process, err := proc.Open(pid)
	if err != nil {
		return ProcessInspection{}, err
	}
	defer process.Close()
	m := Process{Ident: process.Ident, ImagePID: l.status.ImagePID(), Name: p.Name}
	driver, err := open()
	if err != nil {
		if len(held.devices) == 0 {
			return p, nil // libcuda is loaded but holds no device, so there is no state for a driver to save
		}
		p.Findings = append(p.Findings, m.about(driverFinding(err)))
		return p, nil
	}
	// RestoreThreadID is the only call that does not block if the process is stopped or frozen.
	_, err = driver.Process(pid).RestoreThreadID(ctx)
	if errors.Is(err, cudackpt.ResultNotInitialized) {
		if len(held.devices) > 0 {
			p.Holder = &Holder{Ident: process.Ident, Name: p.Name, held: held}
		}
		return p, nil // otherwise libcuda is loaded but was never used
	}
	if err != nil {
		if !process.Alive() {
			return ProcessInspection{}, proc.GoneOr(pid, proc.ErrGone)
		}
		p.Findings = append(p.Findings, m.about(found(FindingCUDAState, err, "look for Xid messages in the kernel log (dmesg)")))
		return p, nil
	}
	var mismatch *cudackpt.LibraryMismatchError
	if err := driver.CheckLibrary(pid); errors.As(err, &mismatch) {
		p.Findings = append(p.Findings, m.about(found(FindingMismatch, err, "")))
	} else if err != nil {
		return ProcessInspection{}, fmt.Errorf("process %d (%s): %w", pid, p.Name, err)
	}
	beside := Holder{Ident: m.Ident, Name: m.Name, held: held}
	p.Findings = append(p.Findings, beside.besideFinding()...)
	if m.Stopped, err = proc.Stopped(pid); err != nil {
		return ProcessInspection{}, err
	}
	var uninitialized *cudackpt.UninitializedError
	if m.GPUs, err = VisibleGPUs(ctx, driver, pid); errors.As(err, &uninitialized) {
		p.Findings = append(p.Findings, m.about(found(FindingNoGPU, err, "")))
		return p, nil
	} else if err != nil {
		return ProcessInspection{}, fmt.Errorf("process %d (%s): %w", pid, p.Name, err)
	}
	if len(m.GPUs) == 0 {
		p.Findings = append(p.Findings, m.about(refuse(FindingNoGPU, "uses CUDA but no GPU's device node is in its /dev",
			"make the /dev/nvidia* nodes of its GPUs visible in its mount namespace")))
	}
	p.Process = &m
	return p, nil
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

// driverFinding says why a driver cannot be used.
func driverFinding(err error) Finding {
	if errors.Is(err, cudackpt.ErrNotSupported) {
		return found(FindingDriverOld, err, "")
	}
	return found(FindingDriverMissing, err, "install the NVIDIA driver on this host")
}

// DifferentGPUs refuses processes that see different GPUs. Their GPUs could be paired only for
// one process at a time, and then two processes that share a GPU could end up on different
// ones.
func DifferentGPUs(processes []Process) Findings {
	for i := range processes {
		if m := &processes[i]; !slices.Equal(m.GPUs, processes[0].GPUs) {
			return Findings{m.about(refuse(FindingDifferentGPUs, fmt.Sprintf("sees other GPUs (%d) than process %d (%s) beside it (%d), and a restore could not map them together",
				len(m.GPUs), processes[0].PID, processes[0].Name, len(processes[0].GPUs)),
				"dump them as trees of their own, or suspend them one by one"))}
		}
	}
	return nil
}

// StateFindings refuses a CUDA process that is not in the running state.
func StateFindings(m *Process, state cudackpt.State) Findings {
	if state == cudackpt.StateRunning {
		return nil
	}
	return Findings{m.about(refuse(FindingCUDAState, fmt.Sprintf("is already %v, by no dump or suspend that is known here", state), StateRemedy(m.PID, state)))}
}

// StateRemedy says how a process comes back from a CUDA state in which no session of ours holds
// it.
func StateRemedy(pid int, state cudackpt.State) string {
	switch state {
	case cudackpt.StateLocked:
		return fmt.Sprintf("cucriu unlock -p %d lets it go on; if another tool is at work on it, wait for that", pid)
	case cudackpt.StateCheckpointed:
		return fmt.Sprintf("let the tool that did it restore it; else free its GPUs, and cucriu resume -p %d --force tries", pid)
	case cudackpt.StateFailed:
		return "the driver cannot bring it back: end it, and restore it from an image"
	}
	return "wait until that is over"
}
