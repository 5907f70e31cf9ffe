package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/internal/proc"
)

// ncclUse is what /proc shows about NCCL in a CUDA process.
type ncclUse struct {
	pid  int
	name string
	// evidence is what shows that the process uses NCCL, or could: the mapped library, shared
	// memory of a communicator, or threads of PyTorch. Empty if it does not.
	evidence []string
	// harmless says that the process was started with those transports switched off that share
	// device memory.
	harmless bool
	// jobFile says that the process was started with a job file. legacyIPC says that NCCL was
	// told to share device memory by legacy cuIpc only.
	jobFile, legacyIPC bool
}

// ncclOf looks for NCCL where the kernel module does not tell who shares device memory
// (sharing.go). Its P2P and SHM transports share device memory between the processes of a
// communicator. NCCL is safe with both switched off, and within one process.
//
// Drivers from 610 on are reported (this was not measured here) to restore memory that is
// shared by legacy cuIpc, if all of the processes were started with one job file
// (cuda-checkpoint --launch-job, which sets CUDA_CHECKPOINT_JOB_FILE in their environment).
// They restore nothing else: no handles of the VMM API, no NVLS.
//
// PyTorch maps NCCL's library in every process. Variables that the program has set in itself or
// that are in an nccl.conf cannot be seen; for these the user must override the finding.
//
// A process without GPU memory shares none: torch.compile, for one, starts workers that load
// everything and never create a context. listed is what NVML says that each process holds.
func (t *tree) ncclOf(driver *cudackpt.Driver, processes []Process, listed []map[cudackpt.UUID]uint64) (Findings, error) {
	var users []ncclUse
	for i := range processes {
		if holdsNothing(listed, i) {
			continue
		}
		l, err := t.look(processes[i].PID)
		var use ncclUse
		if err == nil {
			use, err = l.ncclUse()
		}
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(use.evidence) > 0 {
			users = append(users, use)
		}
	}
	if len(users) == 0 {
		return nil, nil
	}
	text, err := driver.DriverVersion()
	if err != nil {
		return nil, err
	}
	version, err := criuutil.ParseVersion(text)
	if err != nil {
		return nil, fmt.Errorf("driver version: %w", err)
	}
	var outside []ncclUse
	if len(users) == 1 && !users[0].harmless {
		outside = t.ncclOutside(users[0].pid)
	}
	return ncclFindings(users, outside, version), nil
}

// holdsNothing reports whether a process certainly holds no GPU memory: NVML does not list it,
// and lists others of its tree, so NVML can see them.
func holdsNothing(listed []map[cudackpt.UUID]uint64, i int) bool {
	seesOthers := slices.ContainsFunc(listed, func(held map[cudackpt.UUID]uint64) bool { return len(held) > 0 })
	return seesOthers && listed[i] != nil && len(listed[i]) == 0
}

// ncclFindings judges the processes in the tree that use NCCL, and those outside with which one
// of them may share memory.
func ncclFindings(users, outside []ncclUse, driver criuutil.Version) Findings {
	at := slices.IndexFunc(users, func(u ncclUse) bool { return !u.harmless })
	if at < 0 {
		return nil
	}
	first := users[at]
	f := Finding{
		Name: FindingNCCL, PID: first.pid, Process: first.name, Severity: SeverityError,
		Remedy: "start the job with NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 in its environment; " +
			"override this if its processes share no device memory, or if the program itself or an nccl.conf sets both",
	}
	switch {
	case len(users) > 1:
		f.Message = fmt.Sprintf("uses NCCL (%s), and so %s of its tree", strings.Join(first.evidence, ", "), others(users, at))
	case len(outside) > 0:
		// It may belong to another job.
		f.Severity = SeverityWarning
		f.Message = fmt.Sprintf("uses NCCL (%s), and so %s of the same user, outside the tree", strings.Join(first.evidence, ", "), others(outside, -1))
	default:
		return nil
	}
	f.Message += ", with transports that share device memory between processes"
	if driver.Before(610, 0) {
		f.Message += fmt.Sprintf(": driver %v (any before 610) checkpoints that and can then never restore it", driver)
		return Findings{f}
	}
	if !slices.ContainsFunc(users, func(u ncclUse) bool { return !u.harmless && !(u.jobFile && u.legacyIPC) }) {
		f.Severity = SeverityWarning
		f.Message += ", by legacy cuIpc and with a job file, which this driver is reported to restore (not measured)"
		return Findings{f}
	}
	f.Message += fmt.Sprintf(": driver %v (any from 610 on) is reported, and was not measured, to restore that only if they were started with a job file and share by legacy cuIpc alone", driver)
	f.Remedy += "; or start the job under cuda-checkpoint --launch-job with NCCL_CUMEM_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0"
	return Findings{f}
}

// others names all users of NCCL except the one at index but.
func others(users []ncclUse, but int) string {
	var pids []string
	for i, u := range users {
		if i != but {
			pids = append(pids, strconv.Itoa(u.pid))
		}
	}
	if len(pids) > 8 {
		pids = append(pids[:8], "…")
	}
	if len(pids) == 1 {
		return "does process " + pids[0]
	}
	return "do processes " + strings.Join(pids, ", ")
}

// ncclFile is NCCL's library, or its shared memory.
var ncclFile = regexp.MustCompile(`/libnccl\.so[^/]*$|/dev/shm/nccl-[^/]*$`)

// ncclUse looks for NCCL in a process.
func (l *look) ncclUse() (ncclUse, error) {
	use := ncclUse{pid: l.pid, name: l.status.Name}
	files := l.matching(ncclFile)
	for _, f := range l.open {
		if name := f.name(); ncclFile.MatchString(name) && !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	for _, file := range files {
		use.evidence = append(use.evidence, filepath.Base(file))
	}
	for _, tid := range l.threads() {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", l.pid, tid))
		// The threads of a ProcessGroupNCCL: pt_nccl_watchdg, pt_nccl_heartbt.
		if err == nil && strings.HasPrefix(string(comm), "pt_nccl") {
			use.evidence = append(use.evidence, "thread "+strings.TrimSpace(string(comm)))
		}
	}
	if len(use.evidence) == 0 {
		return use, nil
	}
	const most = 3 // a communicator has many segments
	if more := len(use.evidence) - most; more > 0 {
		use.evidence = append(use.evidence[:most], fmt.Sprintf("and %d more", more))
	}
	environment, err := l.environment()
	if err != nil {
		return use, err
	}
	use.harmless = ncclIsHarmless(environment)
	_, use.jobFile = getenv(environment, "CUDA_CHECKPOINT_JOB_FILE")
	use.legacyIPC = ncclUsesLegacyIPC(environment)
	return use, nil
}

// ncclIsHarmless reports whether an environment switches off both transports that share device
// memory. For NCCL any number but 0 means on.
func ncclIsHarmless(environment []string) bool {
	isOn := func(name string) bool {
		value, _ := getenv(environment, name)
		number, err := strconv.ParseInt(value, 0, 64)
		return err == nil && number != 0
	}
	return isOn("NCCL_P2P_DISABLE") && isOn("NCCL_SHM_DISABLE")
}

// ncclUsesLegacyIPC reports whether an environment keeps NCCL from sharing memory by handles of
// the VMM API. NVLS is built on these handles as well.
func ncclUsesLegacyIPC(environment []string) bool {
	memory, _ := getenv(environment, "NCCL_CUMEM_ENABLE")
	host, _ := getenv(environment, "NCCL_CUMEM_HOST_ENABLE")
	return memory == "0" && host == "0"
}

// ncclOutside finds the CUDA processes of the same user, outside the tree, that use NCCL. A
// process that cannot be read belongs to another user.
func (t *tree) ncclOutside(pid int) []ncclUse {
	var self unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &self); err != nil {
		return nil
	}
	all, err := proc.All()
	if err != nil {
		return nil
	}
	var users []ncclUse
	for _, pid := range all {
		var stat unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &stat); err != nil || stat.Uid != self.Uid || slices.Contains(t.pids, pid) {
			continue
		}
		if uses, err := MapsLibcuda(pid); err != nil || !uses {
			continue
		}
		l, err := lookAt(pid)
		if err != nil {
			continue
		}
		if use, err := l.ncclUse(); err == nil && len(use.evidence) > 0 && !use.harmless {
			users = append(users, use)
		}
	}
	return users
}
