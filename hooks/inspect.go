package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"cucriu/criuutil/inject"
	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
)

// target is a CUDA process at hand: the member of a session, its pidfd, and
// the driver's view of it.
type target struct {
	*proc.Process
	member   *Member
	cuda     cudackpt.Process
	locked   bool              // by the dump's current try
	frozen   bool              // by a v1 freezer instead of stopped, for criu to dump
	tracer   *inject.Tracer    // of a dump: lets the restore thread run
	before   proc.AddressSpace // what was mapped before the checkpoint
	prefault *prefault         // of a dump: makes the staging memory ready
	parked   *inject.Parked    // of a dump: its threads; nil if it is held by its stop alone
	lane     *lane             // around criu; nil if criu is to write its GPU state
}

func closeTargets(targets []*target) {
	for _, t := range targets {
		t.Close()
	}
}

func processesOf(targets []*target) []*proc.Process {
	processes := make([]*proc.Process, len(targets))
	for i, t := range targets {
		processes[i] = t.Process
	}
	return processes
}

// inspection is what a look at a tree found. Nothing is touched for it.
type inspection struct {
	pids     []int
	members  []Member
	findings Findings
}

// usesCUDA reports whether there is anything for us to do or to refuse: a tree
// without CUDA is left to criu.
func (in *inspection) usesCUDA() bool { return len(in.members) > 0 || len(in.findings) > 0 }

// inspectTree walks the tree below root, and finds its CUDA processes and
// whatever would make the dump fail after GPU state has been touched. imageDir
// is where the images are to go, empty if that is not known. open is called
// once the first process turns up that has libcuda mapped: a tree without CUDA
// needs no driver.
func inspectTree(ctx context.Context, root int, imageDir string, open func() (*cudackpt.Driver, error)) (*inspection, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	in := &inspection{}
	var general Findings // of interest only if there is CUDA in the tree
	for _, pid := range pids {
		p, err := inspectProcess(ctx, pid, open)
		if errors.Is(err, proc.ErrGone) && pid != root {
			continue
		}
		if err != nil {
			return nil, err
		}
		in.pids = append(in.pids, pid)
		in.findings = append(in.findings, p.findings...)
		general = append(general, p.general...)
		if p.member != nil {
			in.members = append(in.members, *p.member)
		}
	}
	if !in.usesCUDA() {
		return in, nil
	}
	in.findings = append(in.findings, general...)
	in.findings = append(in.findings, differentGPUs(in.members)...)
	if len(in.members) == 0 {
		return in, nil
	}
	driver, err := open()
	if err != nil {
		return nil, err
	}
	listed := make([]map[cudackpt.UUID]uint64, len(in.members))
	for i := range in.members {
		m := &in.members[i]
		if listed[i], err = memoryHeld(ctx, driver, m); err != nil {
			in.findings = append(in.findings, m.found(found(FindingMemoryUnknown, err, "see nvidia-smi on this host")))
			continue
		}
		m.MemoryBytes = knownMemory(listed[i])
		in.findings = append(in.findings, m.memoryFinding(listed[i])...)
	}
	peers, err := peersOf(in.members, listed, holdingsOf(driver, in.members, listed, false))
	if err != nil {
		return nil, err
	}
	resources, err := resourceFindings(proc.System{}, in, imageDir, os.Getpid())
	if err != nil {
		return nil, err
	}
	nccl, err := ncclOf(driver, in)
	if err != nil {
		return nil, err
	}
	in.findings = slices.Concat(in.findings, resources, nccl, peers)
	return in, nil
}

// refuse fails if errors are among the findings that are not overridden. What
// is overridden is logged, and so are warnings.
func (h *Hook) refuse(findings Findings) error {
	forced := slices.Concat(h.Force, h.Config.Force)
	if err := CheckForce(forced); err != nil {
		return err
	}
	findings = findings.Force(forced)
	for _, f := range findings.Of(SeverityWarning) {
		h.Log.Warn(f.String(), "finding", f.Name, "forced", f.Forced)
	}
	return findings.Err()
}

// inspected is what was found out about one process.
type inspected struct {
	name     string
	member   *Member  // what it is in a session, nil if it is no CUDA process
	findings Findings // that come from its use of the NVIDIA driver
	general  Findings // that stand in criu's way, with or without CUDA
}

// inspectProcess looks at one process.
func inspectProcess(ctx context.Context, pid int, open func() (*cudackpt.Driver, error)) (inspected, error) {
	held, err := footprintOf(pid)
	if err != nil {
		return inspected{}, err
	}
	status, err := proc.ReadStatus(pid)
	if err != nil {
		return inspected{}, err
	}
	p := inspected{name: status.Name, general: generalFindings(pid, status, held)}
	if !held.libcuda && len(held.devices) == 0 {
		return p, nil
	}
	process, err := proc.Open(pid)
	if err != nil {
		return inspected{}, err
	}
	defer process.Close()
	m := Member{Ident: process.Ident, ImagePID: status.ImagePID(), Name: status.Name}
	driver, err := open()
	if err != nil {
		if len(held.devices) == 0 {
			return p, nil // libcuda is loaded and holds no device: it has no state that a driver could save
		}
		p.findings = append(p.findings, m.found(driverFinding(err)))
		return p, nil
	}
	// Asking for the restore thread is the one call that does not block if the
	// process is stopped or frozen.
	_, err = driver.Process(pid).RestoreThreadID(ctx)
	if errors.Is(err, cudackpt.ResultNotInitialized) {
		if len(held.devices) > 0 {
			p.findings = append(p.findings, m.found(Finding{
				Name: FindingForkedChild, Severity: SeverityError,
				Message: fmt.Sprintf("holds %v but has no CUDA state that the driver could save: a child forked from a CUDA process without exec "+
					"(a PyTorch DataLoader worker with the fork start method is one), or a user of NVML or of graphics; criu cannot dump it", held.devices),
				Remedy: "end it, or start such children with spawn or forkserver, before the dump",
			}))
		}
		return p, nil // else libcuda is loaded but was never used
	}
	if err != nil {
		if !process.Alive() {
			return inspected{}, goneOr(pid, proc.ErrGone)
		}
		p.findings = append(p.findings, m.found(found(FindingCUDAState, err, "look for Xid messages in the kernel log (dmesg)")))
		return p, nil
	}
	var mismatch *cudackpt.LibraryMismatchError
	if err := driver.CheckLibrary(pid); errors.As(err, &mismatch) {
		p.findings = append(p.findings, m.found(found(FindingMismatch, err, "")))
	} else if err != nil {
		return inspected{}, fmt.Errorf("process %d (%s): %w", pid, p.name, err)
	}
	if m.Stopped, err = proc.Stopped(pid); err != nil {
		return inspected{}, err
	}
	var uninitialized *cudackpt.UninitializedError
	if m.GPUs, err = visibleGPUs(ctx, driver, pid); errors.As(err, &uninitialized) {
		p.findings = append(p.findings, m.found(found(FindingNoGPU, err, "")))
		return p, nil
	} else if err != nil {
		return inspected{}, fmt.Errorf("process %d (%s): %w", pid, p.name, err)
	}
	if len(m.GPUs) == 0 {
		p.findings = append(p.findings, m.found(Finding{
			Name: FindingNoGPU, Severity: SeverityError, Message: "uses CUDA but no GPU's device node is in its /dev",
			Remedy: "make the /dev/nvidia* nodes of its GPUs visible in its mount namespace",
		}))
	}
	p.member = &m
	return p, nil
}

// generalFindings are the things that criu refuses, or cannot get past, as far as
// /proc shows them.
func generalFindings(pid int, status proc.Status, held footprint) Findings {
	var findings Findings
	add := func(name, message, remedy string) {
		findings = append(findings, Finding{Name: name, Severity: SeverityError, PID: pid, Process: status.Name, Message: message, Remedy: remedy})
	}
	if thread, tracerPID := tracedThread(pid); tracerPID != 0 {
		tracer := strconv.Itoa(tracerPID)
		if t, err := proc.ReadStatus(tracerPID); err == nil {
			tracer += " (" + t.Name + ")"
		}
		of := "is"
		if thread != pid {
			of = "has a thread, " + strconv.Itoa(thread) + ", that is"
		}
		add(FindingTraced, of+" traced by process "+tracer+" (a debugger?), and criu must trace it itself", "detach it before the dump")
	}
	for _, inode := range held.anonymous {
		name := FindingAnonymousInode
		if inode == "anon_inode:[io_uring]" {
			name = FindingIOURing
		}
		add(name, "has "+inode+" open, which criu cannot dump", "let the job close it, or run it without")
	}
	if len(held.infiniband) > 0 {
		add(FindingInfiniBand, fmt.Sprintf("has %v open, which criu cannot dump", held.infiniband), "run the job without RDMA (NCCL_IB_DISABLE=1)")
	}
	return findings
}

// tracedThread finds a thread of a process that somebody else traces, and who does.
// Any thread may be traced alone.
func tracedThread(pid int) (tid, tracer int) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return 0, 0
	}
	for _, tid := range tids {
		status, err := proc.ReadStatus(tid)
		if err == nil && status.TracerPID != 0 && status.TracerPID != os.Getpid() {
			return tid, status.TracerPID
		}
	}
	return 0, 0
}

// visibleGPUs returns the GPUs that a process can see, or fails when ctx ends: its
// /dev is its own, and may be on a file system whose server does not answer.
func visibleGPUs(ctx context.Context, driver *cudackpt.Driver, pid int) ([]cudackpt.GPU, error) {
	type answer struct {
		gpus []cudackpt.GPU
		err  error
	}
	answered := make(chan answer, 1) // nobody may be there any more
	go func() {
		gpus, err := driver.VisibleGPUs(pid)
		answered <- answer{gpus, err}
	}()
	select {
	case a := <-answered:
		return a.gpus, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("its /dev does not answer (a FUSE or network file system whose server hangs?): look at /proc/%d/root/dev, and end that server: %w", pid, ctx.Err())
	}
}

// insideFindings refuses a tree in which criu is itself, or who would start it.
func insideFindings(pids []int, criu int) Findings {
	if !slices.Contains(pids, criu) {
		return nil
	}
	f := Finding{
		Name: FindingCriuInside, Severity: SeverityError, PID: criu, Message: "is in the tree that is to be dumped, and criu cannot dump itself",
		Remedy: "start the dump from outside of the tree, or dump a part of the tree that it is not in",
	}
	if status, err := proc.ReadStatus(criu); err == nil {
		f.Process = status.Name
	}
	return Findings{f}
}

// found makes a finding one about this process.
func (m *Member) found(f Finding) Finding {
	f.PID, f.Process = m.PID, m.Name
	return f
}

// driverFinding says why a driver cannot be used.
func driverFinding(err error) Finding {
	if errors.Is(err, cudackpt.ErrNotSupported) {
		return found(FindingDriverOld, err, "")
	}
	return found(FindingDriverMissing, err, "install the NVIDIA driver on this host")
}

// differentGPUs refuses processes that see different GPUs. They could be
// paired only one process at a time, and then two processes that share a GPU
// could be parted.
func differentGPUs(members []Member) Findings {
	for i := range members {
		if m := &members[i]; !slices.Equal(m.GPUs, members[0].GPUs) {
			return Findings{m.found(Finding{
				Name: FindingDifferentGPUs, Severity: SeverityError,
				Message: fmt.Sprintf("sees other GPUs (%d) than process %d (%s) beside it (%d), and a restore could not map them together",
					len(m.GPUs), members[0].PID, members[0].Name, len(members[0].GPUs)),
				Remedy: "dump them as trees of their own, or suspend them one by one",
			})}
		}
	}
	return nil
}

// stateFindings refuses a CUDA process that is not running.
func stateFindings(m *Member, state cudackpt.State) Findings {
	if state == cudackpt.StateRunning {
		return nil
	}
	return Findings{m.found(Finding{
		Name: FindingCUDAState, Severity: SeverityError,
		Message: fmt.Sprintf("is already %v: something else checkpoints it, or an earlier dump was cut off", state),
		Remedy:  fmt.Sprintf("cucriu recover brings it back, or cucriu resume -p %d", m.PID),
	})}
}

// open opens the driver and takes hold of the members of a session that have not
// ended.
func (h *Hook) open(s *Session) (*cudackpt.Driver, []*target, error) {
	driver, err := h.OpenDriver()
	if err != nil {
		return nil, nil, err
	}
	targets, err := openMembers(driver, s.Members)
	return driver, targets, err
}

// openMembers takes hold of the members of a session. Those that have ended
// are left out.
func openMembers(driver *cudackpt.Driver, members []Member) ([]*target, error) {
	var targets []*target
	for i := range members {
		process, err := proc.Reopen(members[i].Ident)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			closeTargets(targets)
			return nil, err
		}
		targets = append(targets, &target{Process: process, member: &members[i], cuda: driver.Process(process.PID)})
	}
	return targets, nil
}

// unionOfGPUs lists every GPU that any of the processes saw, in order of first
// appearance.
func unionOfGPUs(lists ...[]cudackpt.GPU) []cudackpt.GPU {
	var union []cudackpt.GPU
	seen := make(map[cudackpt.UUID]bool)
	for _, list := range lists {
		for _, gpu := range list {
			if !seen[gpu.UUID] {
				seen[gpu.UUID] = true
				union = append(union, gpu)
			}
		}
	}
	return union
}
