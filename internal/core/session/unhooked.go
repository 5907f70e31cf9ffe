package session

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/proc"
)

// Unhooked explains a process whose threads are parked, and that no session of this run directory holds: criu has
// restored it without cucriu-hook, or a restore that failed has left it, and nobody brings its GPU memory back, or
// another run directory knows it. It returns nil for any other, such as one that somebody is at work on.
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
	member := []journal.Member{{Process: inspect.Process{Ident: id}}}
	if s, err := journal.FindOpen(runDir, proc.Ident{}, member); err != nil || s != nil || othersWork(runDir) {
		return nil
	}
	all, _ := journal.List(runDir) // without them nothing is known of it
	if isRestoring(all) {
		return nil
	}
	if err := unhooked(all, id, status.Name); err != nil {
		return err
	}
	if stopped, _ := proc.Stopped(pid); stopped { // one that runs may block its signals by itself
		return OtherRunDir(runDir, pid)
	}
	return nil
}

// OtherRunDir explains a process that is parked, and of which a run directory knows nothing.
func OtherRunDir(runDir string, pid int) error {
	return fault.New(fmt.Sprintf("process %d was suspended or dumped with another run directory than %s", pid, runDir),
		fmt.Sprintf("set CUCRIU_RUN_DIR to that one (if it is gone, or criu has restored the process without cucriu-hook, "+
			"it can never run: kill -9 %d, and restore its image with cucriu restore)", pid))
}

// othersWork reports whether a watcher has a session of another run directory: it may have parked the process for a
// moment.
func othersWork(runDir string) bool {
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(commands, func(path string) bool {
		text, _ := os.ReadFile(path) // nothing if it has ended
		args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		sessions := filepath.Dir(args[len(args)-1])
		return slices.Contains(args, "watch") && filepath.Base(sessions) == "sessions" &&
			filepath.Dir(sessions) != filepath.Clean(runDir)
	})
}

// isRestoring reports whether a restore is at work, whose processes are not known before they are there.
func isRestoring(all []*journal.Session) bool {
	return slices.ContainsFunc(all, func(s *journal.Session) bool {
		return s.Kind == journal.KindRestore && s.Outcome == ""
	})
}

// unhooked is [Unhooked] of a process that is parked, and in no open session, while no restore is at work.
func unhooked(all []*journal.Session, id proc.Ident, name string) error {
	for _, s := range slices.Backward(all) {
		isMember := func(m journal.Member) bool { return m.PID == id.PID && m.Name == name } // another may have its pid
		i := slices.IndexFunc(s.Members, isMember)
		images := cmp.Or(s.PublishedDir, s.ImageDir)
		if tree := leftWith(s, id); tree != nil {
			return neverRuns(id, images, "by a restore that failed (restore.on_failure: leave)", tree)
		}
		if s.Kind != journal.KindDump || s.Criu.Elsewhere() || i < 0 {
			continue
		}
		if s.Members[i].Ident == id || s.Outcome != journal.OutcomeDumped && !imagedir.HasInventory(images) {
			return nil // it is the one that the dump has left, or the dump has failed
		}
		tree := []int{id.PID}
		if s.Root != nil {
			if all, err := proc.Tree(s.Root.PID); err == nil && slices.Contains(all, id.PID) {
				tree = all
			}
		}
		return neverRuns(id, images, "without cucriu-hook", tree)
	}
	return nil
}

// leftWith returns the processes that a failed restore has left stopped, as configured, if this is one of them.
func leftWith(s *journal.Session, id proc.Ident) (tree []int) {
	if s.Outcome != journal.OutcomeLeft {
		return nil
	}
	processes, _ := OpenTree(&s.Record)
	defer proc.CloseAll(processes)
	isLeft := false
	for _, p := range processes {
		tree, isLeft = append(tree, p.PID), isLeft || p.Ident == id
	}
	if !isLeft {
		return nil
	}
	return tree
}

// neverRuns says how a process came to be without its GPU memory, and what restores its job.
func neverRuns(id proc.Ident, images, how string, tree []int) error {
	return fault.New(fmt.Sprintf("process %d was restored from %s %s, and can never run", id.PID, images, how),
		fmt.Sprintf("kill -9 %s, then cucriu restore -D %s", strings.Trim(fmt.Sprint(tree), "[]"), images))
}
