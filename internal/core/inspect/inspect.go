package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// Inspection is what was found in a tree of processes. Nothing was touched to find it.
type Inspection struct {
	PIDs      []int
	Processes []Process
	Findings  preflight.Findings
	// Room is where the image is to go, if only the libraries in the processes can tell how much it takes; else nil.
	Room *Room

	kernel kernelAnswer
}

// UsesCUDA reports whether the tree holds anything to do or to refuse. A tree without is left to
// criu.
func (in *Inspection) UsesCUDA() bool { return len(in.Processes) > 0 || len(in.Findings) > 0 }

// Tree inspects a tree as it is before anything is touched. It finds the CUDA processes, and everything that would
// make the dump fail after GPU state has been touched. imageDir is where the images are to go;
// it is empty if that is not known. Tree calls open when it meets the
// first process that has libcuda mapped: a tree without CUDA needs no driver. prefetched is nil if nobody
// has begun to ask.
func Tree(
	ctx context.Context, advice *inventory.Tree, imageDir string, prefetched *Prefetched,
	open func() (*cudackpt.Driver, error),
) (*Inspection, error) {
	return (&snapshot{advice}).inspect(ctx, imageDir, prefetched, sync.OnceValues(open))
}

// Prefetched is what the kernel module told of a tree right before its inspection.
type Prefetched struct {
	done   chan struct{}
	kernel kernelAnswer
}

// Prefetch loads the driver and asks the kernel module about a tree, while a dump is
// prepared. [Tree] asks again if other processes use CUDA by then, and a dump asks again once the tree is
// stopped.
func (h Host) Prefetch(ctx context.Context, advice *inventory.Tree) *Prefetched {
	e := &Prefetched{done: make(chan struct{})}
	go func() {
		defer close(e.done)
		ctx, cancel := context.WithTimeout(ctx, h.Timeout)
		defer cancel()
		s := &snapshot{advice}
		if in, _, err := s.askDriver(ctx, nil, sync.OnceValues(h.CheckpointDriver)); err == nil {
			e.kernel = in.kernel
		}
	}()
	return e
}

// answer waits for what was told.
func (e *Prefetched) answer(ctx context.Context) kernelAnswer {
	if e != nil {
		select {
		case <-e.done:
			return e.kernel
		case <-ctx.Done():
		}
	}
	return kernelAnswer{}
}

// inspect asks the driver and the kernel module, which may take long, and judges the processes
// meanwhile.
func (s *snapshot) inspect(ctx context.Context, imageDir string, prefetched *Prefetched, open func() (*cudackpt.Driver, error)) (*Inspection, error) {
	judged := make(chan preflight.Findings, 1)
	go func() { judged <- s.judge() }()
	in, gone, err := s.askDriver(ctx, prefetched, open)
	ofTree := <-judged
	if err != nil {
		return nil, err
	}
	for _, pid := range s.PIDs {
		if !s.Has(pid) || slices.Contains(gone, pid) {
			ofTree = slices.DeleteFunc(ofTree, func(f preflight.Finding) bool { return f.PID == pid })
			ofTree = append(ofTree, endedFindings(pid)...)
			continue
		}
		in.PIDs = append(in.PIDs, pid)
	}
	in.Findings = append(in.Findings, ofTree...)
	if len(in.Processes) == 0 {
		return in, nil
	}
	resources, err := in.resourceFindings(s, imageDir)
	in.Findings = slices.Concat(in.Findings, DifferentGPUs(in.Processes), resources)
	return in, err
}

// askDriver finds what the driver and the kernel module say of a tree, and which processes have ended
// meanwhile.
func (s *snapshot) askDriver(ctx context.Context, prefetched *Prefetched, open func() (*cudackpt.Driver, error)) (in *Inspection, gone []int, err error) {
	each, errs := make([]Inspected, len(s.Processes)), make([]error, len(s.Processes))
	proc.AtOnce(runtime.NumCPU(), len(s.Processes), func(i int) {
		each[i], errs[i] = askDriver(ctx, s.Processes[i], s.Processes[i].Driver(), open, true)
	})
	in = new(Inspection)
	var holders []*Holder
	for i, p := range each {
		switch {
		case errors.Is(errs[i], proc.ErrGone) && i > 0:
			gone = append(gone, s.Processes[i].PID)
			continue
		case errs[i] != nil:
			return nil, nil, errs[i]
		case p.Process != nil:
			in.Processes = append(in.Processes, *p.Process)
		case p.Holder != nil:
			holders = append(holders, p.Holder)
		}
		in.Findings = append(in.Findings, p.Findings...)
	}
	if len(holders)+len(in.Processes) == 0 {
		return in, gone, nil
	}
	driver, err := open()
	if err != nil {
		return nil, nil, err
	}
	ofHolders, err := holderFindings(ctx, driver, holders, in.Processes)
	in.Findings = append(in.Findings, ofHolders...)
	if err != nil || len(in.Processes) == 0 {
		return in, gone, err
	}
	in.kernel = prefetched.answer(ctx)
	for i := range in.Processes {
		in.Processes[i].Known = in.kernel.known
	}
	if !in.kernel.isAbout(in.Processes) {
		in.kernel = askKernel(driver, in.Processes)
	}
	losses, err := s.lossFindings(in.kernel, in.Processes, isServed)
	in.Findings = slices.Concat(in.Findings, memoryFindings(in.Processes), losses,
		wayBackFindings(ctx, driver, in.Processes), neighborFindings(ctx, in.Processes, driver.ContextsOn))
	return in, gone, err
}

// Named finds what cannot be restored in processes that the user has named, rather than
// in a tree. A suspend uses it.
func Named(ctx context.Context, driver *cudackpt.Driver, processes []Process) (preflight.Findings, error) {
	if err := Measure(ctx, driver, processes); err != nil {
		return nil, err
	}
	losses, err := Losses(driver, processes, isServed)
	return slices.Concat(DifferentGPUs(processes), losses, wayBackFindings(ctx, driver, processes),
		neighborFindings(ctx, processes, driver.ContextsOn)), err
}

// TracedFindings finds who among processes is traced: a suspend could not park it. NVIDIA's cuda-checkpoint need not,
// and CRIU's plugin calls that while CRIU traces.
func TracedFindings(processes []Process) (findings preflight.Findings) {
	for i := range processes {
		pid := processes[i].PID
		// Of one that ends, no thread is traced.
		traced(&inventory.Process{PID: pid}, func(message, remedy string) {
			findings = append(findings, processes[i].about(preflight.New(preflight.FindingTraced, message, remedy)))
		})
	}
	return findings
}

// Inspected is what was found about one process, and its use of the NVIDIA driver.
type Inspected struct {
	Name     string
	Process  *Process // nil if it is not a CUDA process
	Holder   *Holder  // nil if it is a CUDA process, or holds nothing of the driver
	Findings preflight.Findings
}

// One looks at one process and its use of the NVIDIA driver.
func One(ctx context.Context, pid int, open func() (*cudackpt.Driver, error)) (Inspected, error) {
	p, err := inventory.Now(pid)
	if err != nil {
		return Inspected{}, err
	}
	return askDriver(ctx, p, p.Driver(), open, false)
}

// askDriver asks the driver about a process, if that holds anything of it, and NVML how much memory it holds, if
// that is to be measured.
func askDriver(
	ctx context.Context, of *inventory.Process, held inventory.DriverUse,
	open func() (*cudackpt.Driver, error), measure bool,
) (p Inspected, err error) {
	pid := of.PID
	p = Inspected{Name: of.Status().Name}
	defer func() {
		if errors.Is(ctx.Err(), context.Canceled) { // which says nothing about the process
			p, err = Inspected{}, context.Cause(ctx)
		}
	}()
	if !held.Libcuda && len(held.Devices) == 0 {
		return p, nil
	}
	process, err := proc.Open(pid)
	if err != nil {
		return Inspected{}, err
	}
	defer process.Close()
	m := Process{Ident: process.Ident, ImagePID: of.Status().ImagePID(), Name: p.Name}
	driver, err := open()
	if err != nil {
		if len(held.Devices) > 0 { // else libcuda is loaded but holds no device, so there is no state for a driver to save
			p.Findings = append(p.Findings, m.about(driverFinding(err)))
		}
		return p, nil
	}
	// RestoreThreadID is the only call that does not block if the process is stopped or frozen.
	_, err = driver.Process(pid).RestoreThreadID(ctx)
	if errors.Is(err, cudackpt.ResultNotInitialized) {
		if len(held.Devices) > 0 { // else libcuda is loaded but was never used
			p.Holder = &Holder{Ident: process.Ident, Name: p.Name, held: held}
		}
		return p, nil
	}
	if err != nil {
		if !process.Alive() {
			return Inspected{}, proc.GoneOr(pid, proc.ErrGone)
		}
		p.Findings = append(p.Findings, m.about(preflight.Found(preflight.FindingCUDAState, err)))
		return p, nil
	}
	var nvml sync.WaitGroup
	var unmeasured error
	if measure {
		nvml.Go(func() { unmeasured = m.askNVML(ctx, driver) })
	}
	findings, err := askAbout(ctx, held, driver, &m)
	nvml.Wait()
	p.Findings = append(p.Findings, findings...)
	if err != nil || m.GPUs == nil {
		return p, err
	}
	if unmeasured != nil && errors.Is(ctx.Err(), context.Canceled) {
		return p, unmeasured // nobody waits for it
	}
	if unmeasured != nil {
		f := m.about(preflight.Found(preflight.FindingMemoryUnknown, unmeasured))
		f.Severity = preflight.SeverityError
		p.Findings = append(p.Findings, f)
	}
	p.Process = &m
	return p, nil
}

// askAbout finds out about a CUDA process what NVML does not know. It has no GPUs afterwards if they
// cannot be told.
func askAbout(
	ctx context.Context, held inventory.DriverUse, driver *cudackpt.Driver, m *Process,
) (preflight.Findings, error) {
	beside := Holder{Ident: m.Ident, Name: m.Name, held: held}
	findings := beside.besideFinding()
	failed := func(err error) (preflight.Findings, error) {
		return nil, fmt.Errorf("process %d (%s): %w", m.PID, m.Name, err)
	}
	var mismatch *cudackpt.LibraryMismatchError
	if err := driver.CheckLibrary(m.PID); errors.As(err, &mismatch) {
		findings = append(findings, m.about(preflight.Found(preflight.FindingMismatch, err)))
	} else if err != nil {
		return failed(err)
	}
	var err error
	if m.Stopped, err = proc.Stopped(m.PID); err != nil {
		return nil, err
	}
	var uninitialized *cudackpt.UninitializedError
	gpus, err := VisibleGPUs(ctx, driver, m.PID)
	switch {
	case errors.As(err, &uninitialized):
		return append(findings, m.about(preflight.Found(preflight.FindingNoGPU, err))), nil
	case err != nil:
		return failed(err)
	case len(gpus) == 0:
		findings = append(findings, m.about(preflight.New(preflight.FindingNoGPU, "uses CUDA, but its /dev has no GPU device node", "")))
	}
	m.GPUs = slices.Concat([]cudackpt.GPU{}, gpus) // not nil
	return findings, nil
}

// CheckJob finds the reasons for which a dump of the tree below root would be refused, and what
// else there is to say about it. imageDir is where its images would go; it is empty if
// that is not known, and it need not exist yet. CheckJob touches nothing. It cannot see managed
// memory: only the checkpoint finds that, and the job then runs on.
func (h Host) CheckJob(ctx context.Context, root int, imageDir string) (preflight.Findings, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	advice, err := inventory.Advice(root)
	if errors.Is(err, proc.ErrGone) {
		err = preflight.AsRefusal(err)
	}
	if err != nil {
		return nil, err
	}
	s := &snapshot{advice}
	open := sync.OnceValues(h.CheckpointDriver)
	in, err := s.inspect(ctx, durable.Existing(imageDir), nil, open)
	if err != nil {
		return nil, err
	}
	if !in.UsesCUDA() {
		f := preflight.Fine(preflight.FindingCUDA, "no process of its tree uses CUDA: criu dumps it by itself")
		f.PID = root
		return slices.Concat(preflight.Findings{f}, in.Findings), nil
	}
	hierarchies, err := proc.ReadHierarchies()
	if err != nil {
		return nil, err
	}
	freezers, err := proc.Frozen(advice.PIDs)
	if err != nil {
		return nil, err
	}
	findings := FrozenFindings(freezers)
	for i := range in.Processes {
		m := &in.Processes[i]
		frozen, err := hierarchies.FrozenBy(m.PID)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		findings = append(findings, m.summary())
		if m.Stopped && len(frozen) == 0 {
			findings = append(findings, m.about(preflight.Fine(preflight.FindingStopped,
				"is stopped, and stays stopped through dump and restore")))
		}
		if m.Stopped || len(frozen) > 0 { // the driver would not answer until the process runs again
			if p, err := s.Process(m.PID); err == nil && len(p.Driver().Devices) == 0 { // only a checkpoint lets go of all
				findings = append(findings, StateFindings(m, cudackpt.StateCheckpointed)...)
			}
			continue
		}
		driver, _ := open() // it was opened to find this process
		state, err := driver.Process(m.PID).State(ctx)
		if err != nil {
			findings = append(findings, m.about(preflight.New(preflight.FindingCUDAState, err.Error(), "check whether another tool is checkpointing it")))
			continue
		}
		findings = append(findings, StateFindings(m, state)...)
	}
	if criu, err := criuutil.FindCriu(ctx, h.Criu, os.Getenv); err == nil { // else it is a finding about the machine
		findings = append(findings, s.socketFindings(criu.Version)...)
	}
	options, err := s.optionsFindings(ctx, Asked{Criu: h.Criu})
	return slices.Concat(findings, options, in.Findings), err
}

// FrozenFindings refuse a tree of which control groups have frozen a part. criu can dump it only if it is told the
// group: frozen processes do not answer ptrace (cgroup v1), or do not run what criu brings into them (v2).
func FrozenFindings(freezers []proc.Freezer) (findings preflight.Findings) {
	for _, freezer := range freezers {
		findings = append(findings, preflight.New(preflight.FindingFrozen,
			"the job, or a part of it, is frozen by control group "+freezer.Dir,
			"thaw it first, or name the group to cucriu dump: --freeze-cgroup "+freezer.Dir))
	}
	return findings
}
