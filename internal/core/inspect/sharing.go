package inspect

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/agent"
	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/guest"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/nvrm"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
)

// A process that has imported device memory of another one, by cuIpc, by a handle of the VMM
// API or from an exported pool, is locked and checkpointed without a complaint, and its restore
// then answers 1, 801 or 304 whatever is tried, even if the exporter has ended (measured on
// driver 580.159.04). Its exporter is restored, without what they shared. Host memory of the
// driver (NCCL's SHM transport) loses both. An export that nobody opened, or that was closed
// again, does no harm, nor does host memory that several processes have registered.

// Losses looks in processes for what the driver would checkpoint and never restore. Some
// of the processes may have ended. NVML must have been asked about them: see [Measure].
// What two processes share that are both served is no loss; nobody is, if served is nil.
func Losses(driver *cudackpt.Driver, processes []Process, served func(Process) bool) (preflight.Findings, error) {
	return new(snapshot).lossFindings(askKernel(driver, processes), processes, served)
}

// isServed reports whether a process has a library that takes down what it shares with others that have it, too.
func isServed(p Process) bool {
	return hasAgent(p, func(a *agent.Agent) bool { return a.ServesAll() && a.AtRest() == nil })
}

// hasAgent reports whether a process has a library that can do something.
func hasAgent(p Process, can func(*agent.Agent) bool) bool {
	if p.Stopped { // nothing is asked of its library
		return false
	}
	process, err := proc.Reopen(p.Ident)
	if err != nil {
		return false
	}
	defer process.Close()
	a, err := agent.Find(process)
	return err == nil && a != nil && can(a)
}

// unservedCause says why the library of a process cannot take down what it shares, and what to do; it is empty if the
// process has none, or none that could ever.
func unservedCause(p Process) (cause, remedy string) {
	process, err := proc.Reopen(p.Ident)
	if err != nil {
		return "", ""
	}
	defer process.Close()
	a, err := agent.Find(process)
	if err == nil && a == nil {
		return notLoaded(p)
	}
	if err != nil || !a.ServesAll() {
		return "", ""
	}
	if err := a.AtRest(); err != nil {
		return err.Error(), "start the job again, without what writes there"
	}
	if p.Stopped {
		return fmt.Sprintf("process %d (%s) is stopped, so its library cannot take down what they share", p.PID, p.Name),
			fmt.Sprintf("continue it: kill -CONT %d", p.PID)
	}
	return "", ""
}

// notLoaded says why a process has no library although it was to have one: a program that has become another user's since
// its job began may not be allowed to open it.
func notLoaded(p Process) (cause, remedy string) {
	environment := (&inventory.Process{PID: p.PID}).Environment()
	status, err := proc.ReadStatus(p.PID)
	path := guest.Unreadable(environment)
	if err != nil || path == "" {
		return "", ""
	}
	return fmt.Sprintf("process %d (%s) runs without the library that takes it down, because its user, %d, could not open %s",
			p.PID, p.Name, status.UIDs[1], quote.Name(path)),
		"let all users pass through the directories on the way to it (chmod o+x), and start the job again"
}

// lossFindings says what follows from the kernel module's answer about processes. For served see [Losses].
func (s *snapshot) lossFindings(kernel kernelAnswer, processes []Process, served func(Process) bool) (preflight.Findings, error) {
	findings, err := s.peersOf(processes, kernel)
	if err != nil {
		return nil, err
	}
	var pids []int // of those that are served
	for _, p := range processes {
		if served != nil && len(kernel.shares) > 0 && served(p) {
			pids = append(pids, p.PID)
		}
	}
	for _, share := range kernel.shares {
		both := slices.Contains(pids, share.PID) && slices.Contains(pids, share.With)
		for i := range processes {
			processes[i].Served = processes[i].Served || both && (processes[i].PID == share.PID || processes[i].PID == share.With)
		}
		findings = append(findings, sharingFinding(processes, share, both))
	}
	if kernel.unknown == nil {
		return findings, nil
	}
	return append(findings, unknownSharing(processes, kernel.unknown)...), nil
}

func sharingFinding(processes []Process, share nvrm.Share, served bool) preflight.Finding {
	at := slices.IndexFunc(processes, func(p Process) bool { return p.PID == share.PID })
	other := partner(processes, share.With)
	if served {
		return processes[at].about(preflight.Fine(preflight.FindingSharing, "shares device memory with "+other+": it is taken down for the checkpoint, and put up again"))
	}
	if share.Maybe {
		return processes[at].about(preflight.Warning(preflight.FindingSharing, "may share device memory with "+other+", which has imported some: a restore would silently end that", ""))
	}
	message, remedy := "shares device memory with "+other+": the driver would checkpoint that, and could never restore it", ""
	for _, p := range processes {
		if p.PID != share.PID && p.PID != share.With || remedy != "" {
			continue
		}
		var cause string
		if cause, remedy = unservedCause(p); cause != "" {
			message = "shares device memory with " + other + "; " + cause
		}
	}
	return processes[at].about(preflight.New(preflight.FindingSharing, message, remedy))
}

// partner names the other process that has the memory.
func partner(processes []Process, pid int) string {
	if pid == 0 {
		return "an unknown process"
	}
	name := processName(pid)
	if !slices.ContainsFunc(processes, func(p Process) bool { return p.PID == pid }) {
		name += ", outside the dumped tree"
	}
	return name
}

// unknownSharing refuses several processes with GPU memory of which it cannot be told whether they share it. A process
// without GPU memory shares none: torch.compile, for one, starts workers that load everything and never create a
// context.
func unknownSharing(processes []Process, why error) preflight.Findings {
	var having []*Process
	for i := range processes {
		if !holdsNothing(processes, i) {
			having = append(having, &processes[i])
		}
	}
	if len(having) < 2 {
		return nil
	}
	return preflight.Findings{having[0].about(preflight.New(preflight.FindingSharing,
		fmt.Sprintf("may share device memory with %s, which the driver would checkpoint and could never restore; "+
			"whether it does could not be determined: %v", processName(having[1].PID), why),
		"override this if they share none"))}
}

// holdsNothing reports whether a process certainly holds no GPU memory: NVML does not list it,
// and lists others of its tree, so NVML can see them.
func holdsNothing(processes []Process, i int) bool {
	seesOthers := slices.ContainsFunc(processes, func(p Process) bool { return len(p.Listed) > 0 })
	return seesOthers && processes[i].Listed != nil && len(processes[i].Listed) == 0
}

// Some objects in NVIDIA's resource manager decide whether a process can be restored, because a
// restore forgets them (measured on driver 580.159.04). An allocation of 512 MiB or more has an
// address in the fabric that links the GPUs; if another GPU was given access to it, the restore
// answers INVALID_VALUE. A memory pool loses the access of other GPUs without any error. Memory
// in a NUMA node of the host makes the restore answer 999. The kernel module tells about all of
// them, and the process is not touched for it. On a driver whose module was only compared, what
// is found counts, and that nothing is found does not.

// kernelAnswer is what the kernel module says of processes, as far as it is believed: a wrong
// answer would cost the job.
type kernelAnswer struct {
	asked    []proc.Ident
	known    nvrm.Known             // for the next time
	holdings map[int]*nvrm.Holdings // by pid, where all is known
	driver   drivers.Facts          // if it is measured, what is not among these is not there
	shares   []nvrm.Share
	unknown  error // why it is not known who shares memory
}

// isAbout reports whether it is known of just these processes who shares memory.
func (k kernelAnswer) isAbout(processes []Process) bool {
	same := func(asked proc.Ident, p Process) bool { return asked == p.Ident }
	return k.unknown == nil && len(k.known) > 0 && slices.EqualFunc(k.asked, processes, same)
}

// askKernel asks the kernel module about processes.
// It takes some 100 ms for a process on several GPUs, and some 10 ms for any other.
func askKernel(driver *cudackpt.Driver, processes []Process) kernelAnswer {
	version, err := driver.DriverVersion()
	answer := kernelAnswer{driver: drivers.For(version), unknown: err}
	if err != nil {
		return answer
	}
	if answer.driver.Module == drivers.Unknown {
		answer.unknown = fmt.Errorf("driver %s has been neither measured nor compared with one that has", version)
		return answer
	}
	var pids, gaps []int
	var known nvrm.Known
	for i := range processes {
		if unix.Kill(processes[i].PID, 0) != nil {
			continue // it has ended
		}
		known = processes[i].Known
		gap := nvrm.ShortGap
		if len(processes[i].Listed) != 1 && len(processes[i].GPUs) > 1 && !holdsNothing(processes, i) {
			gap = nvrm.WidestGap
		}
		pids, gaps = append(pids, processes[i].PID), append(gaps, gap)
		answer.asked = append(answer.asked, processes[i].Ident)
	}
	told := nvrm.Ask(driver.Ioctl(), pids, gaps, known)
	for i := range processes {
		processes[i].Known = told.Known
	}
	answer.known, answer.shares, answer.unknown = told.Known, told.Shares, told.Err
	answer.holdings = told.Holdings
	return answer
}
