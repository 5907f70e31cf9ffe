package criuimage

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/proto"
)

// keepOrphans makes criu restore processes whose parents have ended, with what is left of their sessions: see
// orphansMoved.
func keepOrphans(dir string, tasks []Task) error {
	core, err := readCore(dir, tasks[0].PID)
	if err != nil {
		return err
	}
	moved := orphansMoved(tasks, core.GetTc().GetChildSubreaper())
	if len(moved) == 0 {
		return nil
	}
	const name = "pstree.img"
	head, _, err := readFrames(dir, name, "PSTREE")
	if err != nil {
		return err
	}
	entries, err := readImage[*pstree.PstreeEntry](dir, name, "PSTREE")
	if err != nil {
		return err
	}
	data := head
	for _, e := range entries {
		if to, ok := moved[int(e.GetPid())]; ok {
			e.Sid, e.Pgid = proto.Uint32(uint32(to.SID)), proto.Uint32(uint32(to.PGID))
		}
		body, err := proto.Marshal(e)
		if err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
		data = append(binary.LittleEndian.AppendUint32(data, uint32(len(body))), body...)
	}
	if err := renameio.WriteFile(filepath.Join(dir, name), data, 0o600, renameio.WithTempDir(dir), renameio.WithExistingPermissions()); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	return nil
}

// orphansMoved says which processes get another session and process group, and which: those whose session criu could not
// give them, which are put into their parent's. A process inherits its session, so that criu needs its leader above it,
// and in between only processes that have begun a session of their own after they had forked.
//
// criu gives a child of the root (nohup train & in a script, a daemon that forks twice) its session by a helper that ends,
// so the child gets a new parent. Where the root is a subreaper, criu makes it one only after that, and the child would leave
// the tree: it is moved, too.
//
// A group whose leader stays behind in the old session gets the first of its processes here as its leader.
func orphansMoved(tasks []Task, subreaper bool) map[int]Task {
	s := sessions{root: tasks[0].PID, helped: !subreaper, now: make(map[int]Task), born: make(map[int]int)}
	children := make(map[int][]Task)
	for _, t := range tasks[1:] {
		children[t.PPID] = append(children[t.PPID], t)
	}
	var moved []Task // as they were, parents first
	s.now[s.root] = tasks[0]
	for next := []int{s.root}; len(next) > 0; next = next[1:] {
		for _, t := range children[next[0]] {
			was := t
			if !s.inherits(t) {
				t.SID, moved = s.now[t.PPID].SID, append(moved, was)
			}
			s.now[t.PID] = t
			next = append(next, t.PID)
		}
	}
	type group struct{ number, session int }
	leaders := make(map[group]int)
	to := make(map[int]Task)
	for _, was := range moved {
		t := s.now[was.PID]
		of := group{was.PGID, t.SID}
		if _, known := leaders[of]; !known {
			leaders[of] = t.PID
			leads := func(other Task) bool { return other.PID == was.PGID && s.now[other.PID].SID == t.SID }
			if slices.ContainsFunc(moved, leads) {
				leaders[of] = was.PGID
			}
		}
		t.PGID = leaders[of]
		to[t.PID] = t
	}
	return to
}

// sessions are those of a tree, as far as it is looked through, from the root on.
type sessions struct {
	root   int
	helped bool         // children of the root get their sessions from helpers
	now    map[int]Task // with the sessions that they get
	born   map[int]int  // the session in which one that leads another was when it forked
}

// inherits reports whether criu can give a process its session.
func (s *sessions) inherits(t Task) bool {
	if t.SID == t.PID || t.SID == s.now[t.PPID].SID {
		return true
	}
	if t.PPID == s.root {
		return s.helped
	}
	var between []int
	for p := s.now[t.PPID]; p.PID != t.SID; p = s.now[p.PPID] {
		if s.helped && p.PPID == s.root && p.SID == t.SID {
			break // its helper leads the session
		}
		born, known := s.born[p.PID]
		if p.PID == s.root || p.SID != p.PID || known && born != t.SID {
			return false
		}
		between = append(between, p.PID)
	}
	for _, pid := range between {
		s.born[pid] = t.SID
	}
	return true
}
