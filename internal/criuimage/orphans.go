package criuimage

import (
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/pstree"
	"github.com/google/renameio/v2"
	"google.golang.org/protobuf/proto"
)

// keepOrphans makes criu restore, as children of a root that is a subreaper, those whose parents have ended and
// whose session is neither their own nor the root's (nohup train & in a script, a daemon that forks twice).
// criu gives such a process its session by a helper that ends, so it gets a new parent; but criu makes the
// root a subreaper only after that, and the process leaves the tree. It is put into the root's session, with
// what is below it there, which needs no helper.
func keepOrphans(dir string, tasks []Task) error {
	moved := orphansMoved(tasks)
	if len(moved) == 0 {
		return nil
	}
	if core, err := readCore(dir, tasks[0].PID); err != nil || !core.GetTc().GetChildSubreaper() {
		return err
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

// orphansMoved says which processes get another session and process group, and which. A group whose leader
// stays behind in the old session gets the first of its processes here as its leader.
func orphansMoved(tasks []Task) map[int]Task {
	root, from, moved := tasks[0], make(map[int]int), make(map[int]Task) // from: the session that a moved process had
	var order []Task
	for again := true; again; { // whatever the order of the processes
		again = false
		for _, t := range tasks[1:] {
			if _, known := from[t.PID]; known || t.SID == root.SID || t.SID == t.PID {
				continue
			}
			if old, below := from[t.PPID]; t.PPID == root.PID || below && old == t.SID {
				from[t.PID], again = t.SID, true
				order = append(order, t)
			}
		}
	}
	leaders := make(map[int]int)
	for _, t := range order {
		if _, known := leaders[t.PGID]; !known {
			leaders[t.PGID] = t.PID
			if _, stays := from[t.PGID]; stays {
				leaders[t.PGID] = t.PGID
			}
		}
	}
	for _, t := range order {
		t.SID, t.PGID = root.SID, leaders[t.PGID]
		moved[t.PID] = t
	}
	return moved
}
