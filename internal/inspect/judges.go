package inspect

import (
	"fmt"
	"os"
	"slices"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

// judges are what is looked for in each process of a tree. The remedy is that of the kind if none is
// given to found.
var judges = []struct {
	name  string
	judge func(l *look, found found)
}{
	{preflight.FindingTraced, (*look).traced},
	{preflight.FindingIOURing, (*look).ring},
	{preflight.FindingOtherUser, (*look).foreign},
	{preflight.FindingMemoryPolicy, (*look).memoryPolicy},
	{preflight.FindingNamespace, (*look).otherNamespace},
	{preflight.FindingUnsupportedFile, (*look).unsupportedFiles},
	{preflight.FindingUnrestorable, (*look).programInMemory},
	{preflight.FindingUnrestorable, (*look).programByPath},
	{preflight.FindingUnrestorable, (*look).oddThread},
	{preflight.FindingUnrestorable, (*look).orphanTimer},
	{preflight.FindingUnrestorable, (*look).oddFile},
	{preflight.FindingUnrestorable, (*look).sealedMemory},
	{preflight.FindingUnrestorable, (*look).highDescriptor},
}

// found takes what a judge has found.
type found func(message, remedy string)

// judge finds what would make the dump of the process fail, or lose it.
func (l *look) judge() preflight.Findings {
	var findings preflight.Findings
	for _, j := range judges {
		j.judge(l, func(message, remedy string) {
			findings = append(findings, l.about(preflight.New(j.name, message, remedy)))
		})
	}
	return findings
}

// judge judges all processes of the tree, and what they share.
func (s *snapshot) judge() preflight.Findings {
	each := make([]preflight.Findings, len(s.looks))
	atOnce(len(s.looks), func(i int) { each[i] = s.looks[i].judge() })
	return slices.Concat(slices.Concat(each...), s.removedFindings(), s.sharingFindings())
}

// lasts reports whether something stays true for a second. What is true for a moment only, as
// between vfork and exec, or while a process ends, is no obstacle.
func lasts(is func() bool) bool {
	for end := time.Now().Add(time.Second); is(); time.Sleep(10 * time.Millisecond) { // there is no event to wait for
		if time.Now().After(end) {
			return true
		}
	}
	return false
}

// endedFindings refuses a process whose main thread has ended while others run.
func endedFindings(pid int) preflight.Findings {
	if !lasts(func() bool {
		tids, err := proc.Threads(pid)
		return err == nil && slices.ContainsFunc(tids, func(tid int) bool {
			status, err := proc.ReadStatus(tid)
			return err == nil && !status.Ended && tid != pid
		})
	}) {
		return nil
	}
	return preflight.Findings{aboutProcess(pid, preflight.New(preflight.FindingUnsupportedProcess, "has other threads, but its main thread has ended (pthread_exit), and criu cannot dump it", ""))}
}

// sharingFindings refuses processes that share what only threads of one process may share.
func (s *snapshot) sharingFindings() preflight.Findings {
	var pid, other int
	var shared string
	if !lasts(func() bool {
		var alive []int
		for _, l := range s.looks {
			if status, err := proc.ReadStatus(l.pid); err == nil && !status.Ended {
				alive = append(alive, l.pid)
			}
		}
		pid, other, shared = proc.Sharing(alive)
		return shared != ""
	}) {
		return nil
	}
	return preflight.Findings{aboutProcess(pid, preflight.New(preflight.FindingUnsupportedProcess, fmt.Sprintf("shares its %s with process %d (clone), and criu cannot dump that", shared, other),
		"run the job without it; if it was about to execute a program (vfork), try again"))}
}

// InsideFindings refuses a tree that contains criu itself, or the process that would start it.
func InsideFindings(pids []int, criu int) preflight.Findings {
	if !slices.Contains(pids, criu) {
		return nil
	}
	return preflight.Findings{aboutProcess(criu, preflight.New(preflight.FindingCriuInside, "is in the tree to be dumped, and criu cannot dump itself", ""))}
}

// aboutProcess marks a finding as one about a process that was not looked at.
func aboutProcess(pid int, f preflight.Finding) preflight.Finding {
	f.PID = pid
	if status, err := proc.ReadStatus(pid); err == nil {
		f.Process = status.Name
	}
	return f
}

// processName names a process for people.
func processName(pid int) string { return aboutProcess(pid, preflight.Finding{}).Subject() }

// readText reads a small file below /proc; it is empty if the process has ended.
func readText(format string, arguments ...any) string {
	text, _ := os.ReadFile(fmt.Sprintf(format, arguments...))
	return string(text)
}
