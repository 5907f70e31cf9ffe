package session

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"cucriu/internal/fault"
	"cucriu/internal/inject"
	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// Unhooked explains a process that criu has restored without cucriu-hook from an image that this run directory knows:
// its threads are parked, and nobody brings its GPU memory back. It returns nil for any other, such as one that somebody is
// at work on.
func Unhooked(runDir string, pid int) error {
	status, err := proc.ReadStatus(pid)
	if err != nil || status.TracerPID != 0 {
		return nil
	}
	if parked, err := inject.LooksParked(pid); err != nil || !parked {
		return nil
	}
	id, err := proc.IdentOf(pid)
	if err != nil {
		return nil
	}
	if s, err := journal.FindOpen(runDir, proc.Ident{}, []journal.Member{{Process: inspect.Process{Ident: id}}}); err != nil || s != nil {
		return nil
	}
	all, _ := journal.List(runDir) // without them nothing is known of it
	return unhooked(all, pid, status.Name)
}

// unhooked is [Unhooked] of a process that is parked, and in no open session.
func unhooked(all []*journal.Session, pid int, name string) error {
	if slices.ContainsFunc(all, func(s *journal.Session) bool { return s.Kind == journal.KindRestore && s.Outcome == "" }) {
		return nil // whose processes are not known before they are there
	}
	for _, s := range slices.Backward(all) {
		isMember := func(m journal.Member) bool { return m.PID == pid && m.Name == name } // and no other that has its pid by now
		if s.Kind != journal.KindDump || s.Criu.Elsewhere() || !slices.ContainsFunc(s.Members, isMember) {
			continue
		}
		if s.Outcome != journal.OutcomeDumped {
			return nil
		}
		tree := []int{pid}
		if s.Root != nil {
			if all, err := proc.Tree(s.Root.PID); err == nil && slices.Contains(all, pid) {
				tree = all
			}
		}
		images := cmp.Or(s.PublishedDir, s.ImageDir)
		return fault.New(fmt.Sprintf("process %d was restored from %s without cucriu-hook, and can never run", pid, images),
			fmt.Sprintf("kill -9 %s, then cucriu restore -D %s", strings.Trim(fmt.Sprint(tree), "[]"), images))
	}
	return nil
}
