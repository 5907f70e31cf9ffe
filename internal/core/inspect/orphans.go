package inspect

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
)

// orphanFindings report processes that have left the tree because their parents have ended: they are in a session, or a
// process group, that is a member's. A dump would leave them behind, and is refused if they use CUDA. Those that lead a
// session of their own look like anybody else's.
func (s *snapshot) orphanFindings() (findings preflight.Findings) {
	all, err := proc.All()
	self, selfErr := proc.Self()
	if err != nil || selfErr != nil {
		return nil
	}
	var lost []int
	for _, pid := range all {
		if !slices.Contains(s.PIDs, pid) && s.leadsFrom(pid) {
			lost = append(lost, pid)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	now, err := proc.Tree(s.Processes[0].PID) // who was born meanwhile is in it
	if err != nil {
		return nil
	}
	for _, pid := range lost {
		if ours, err := proc.IsAncestor(pid, self); err != nil || ours || pid == self || slices.Contains(now, pid) {
			continue
		}
		find := preflight.Warning
		if hasLibcuda(pid) {
			find = preflight.New
		}
		findings = append(findings, aboutProcess(pid, find(preflight.FindingParent,
			fmt.Sprintf("has left the tree of process %d, because its parent has ended, and would stay behind",
				s.Processes[0].PID),
			"end it, or start the job with cucriu run --dir, where such processes stay in the tree")))
	}
	return findings
}

// leadsFrom reports whether a member of the tree leads the session or the process group of a process without a parent there.
// A pipeline's processes are in the group of the first, and are children of their shell.
func (s *snapshot) leadsFrom(pid int) bool {
	session, err := unix.Getsid(pid)
	if err != nil {
		return false
	}
	group, err := unix.Getpgid(pid)
	if err != nil || !slices.Contains(s.PIDs, session) && !slices.Contains(s.PIDs, group) {
		return false
	}
	status, err := proc.ReadStatus(pid)
	if err != nil || status.Ended || slices.Contains(s.PIDs, status.PPID) {
		return false
	}
	parents, err := unix.Getsid(status.PPID)
	return err != nil || parents != session
}
