package preflight

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"cucriu/criuutil/proc"
	"cucriu/hooks/image"
)

// outsidePipe is a pipe that connects the tree with a process outside of it.
type outsidePipe struct {
	openFile // of a process of the tree
	inode    uint64
	writes   bool     // the tree writes into it; otherwise it only reads
	stderr   bool     // it is the standard error of a process, and no other descriptor
	other    openFile // of the process outside
}

// outsidePipes finds the pipes of which the tree has only ends of one kind, while a process
// outside has the other.
func (t tree) outsidePipes() ([]outsidePipe, error) {
	type ends struct{ reads, writes, stderr bool }
	byInode := make(map[uint64]ends)
	for _, f := range t.open {
		inode, is := f.inode("pipe")
		if !is {
			continue
		}
		reads, writes := f.access()
		e, known := byInode[inode]
		byInode[inode] = ends{e.reads || reads, e.writes || writes, (!known || e.stderr) && f.number == "2"}
	}
	oneSided := t.inodes("pipe")
	maps.DeleteFunc(oneSided, func(inode uint64, _ openFile) bool { return byInode[inode].reads && byInode[inode].writes })
	if len(oneSided) == 0 {
		return nil, nil
	}
	others, err := t.holdersOutside("pipe", oneSided)
	if err != nil {
		return nil, err
	}
	var pipes []outsidePipe
	for _, inode := range slices.Sorted(maps.Keys(oneSided)) {
		end := byInode[inode]
		for _, other := range others[inode] {
			if reads, writes := other.access(); end.writes && reads || end.reads && writes {
				pipes = append(pipes, outsidePipe{oneSided[inode], inode, end.writes, end.stderr, other})
				break
			}
		}
	}
	return pipes, nil
}

// access tells how a descriptor was opened, by the mode of its link.
func (f openFile) access() (reads, writes bool) {
	info, err := os.Lstat(f.path())
	if err != nil {
		return false, false
	}
	return info.Mode()&0o400 != 0, info.Mode()&0o200 != 0
}

// forImage names the pipe for the restore.
func (p outsidePipe) forImage() image.Pipe {
	return image.Pipe{Name: fmt.Sprintf("pipe:[%d]", p.inode), Stderr: p.stderr}
}

// outsideFindings are what connects the tree with processes outside of it. criu refuses some
// of it; the rest comes back otherwise than it was.
func outsideFindings(sockets []outsideSocket, pipes []outsidePipe, t tree) (Findings, error) {
	refused := make(map[uint64]openFile)
	for _, s := range sockets {
		if !s.datagrams() {
			refused[s.peer] = s.openFile
		}
	}
	others := make(map[uint64][]openFile)
	if len(refused) > 0 {
		var err error
		if others, err = t.holdersOutside("socket", refused); err != nil {
			return nil, err
		}
	}
	var findings Findings
	for _, s := range sockets {
		if s.datagrams() {
			continue
		}
		to := "a socket outside of the tree"
		if len(others[s.peer]) > 0 {
			to = processName(others[s.peer][0].pid) + " outside of the tree"
		}
		if name := s.peerName + s.name; name != "" {
			to += " (" + name + ")"
		}
		findings = append(findings, aboutProcess(s.pid, Finding{
			Name: FindingUNIXSocket, Severity: SeverityError,
			Message: fmt.Sprintf("is connected by a UNIX socket (descriptor %s) to %s, and criu cannot dump one half of a connection", s.number, to),
			Remedy:  "let the job close the connection, or dump the tree that holds both ends; if it is the job's output (systemd, journald), send that to a file",
		}))
	}
	for _, p := range pipes {
		if p.writes {
			findings = append(findings, aboutProcess(p.pid, Finding{
				Name: FindingOutsidePipe, Severity: SeverityWarning,
				Message: fmt.Sprintf("writes into a pipe (descriptor %s) that %s reads, which is not in the tree: after cucriu restore it writes where that command writes", p.number, processName(p.other.pid)),
				Remedy:  fmt.Sprintf("plain criu restore needs --inherit-fd 'fd[1]:%s', or the job dies at its next write", p.forImage().Name),
			}))
			continue
		}
		findings = append(findings, aboutProcess(p.pid, Finding{
			Name: FindingOutsidePipe, Severity: SeverityWarning,
			Message: fmt.Sprintf("reads from a pipe (descriptor %s) into which %s writes, which is not in the tree: after a restore the pipe is at its end", p.number, processName(p.other.pid)),
			Remedy:  "if the job needs more of that input, let it read from a file",
		}))
	}
	return findings, nil
}

func aboutProcess(pid int, f Finding) Finding {
	f.PID = pid
	if status, err := proc.ReadStatus(pid); err == nil {
		f.Process = status.Name
	}
	return f
}

// processName names a process for people.
func processName(pid int) string { return aboutProcess(pid, Finding{}).Subject() }
