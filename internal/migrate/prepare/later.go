package prepare

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// Later describes a job again, which is paused now, with what it has come to use since it was
// described: files, directories, and numbers. It returns nil if there is no such thing. What the job
// uses no more stays in the description.
func Later(hook *hooks.Hook, j *Job, truth *inventory.Tree) (*Job, error) {
	if err := errors.Join(truth.CheckUnguarded(), truth.Read()); err != nil {
		return nil, err
	}
	used := lookForFiles(truth, hook.Filled().Config.Driver.Root)
	later := *j
	for _, f := range j.Files {
		delete(used.byPath, f.Path)
	}
	// A process reads about itself: at the destination there is nothing yet to read about.
	maps.DeleteFunc(used.byPath, func(_ string, f *usedFile) bool { return f.Identity.FileSystem == "proc" })
	if err := used.findShared(); err != nil {
		return nil, err
	}
	later.Files = slices.Clone(j.Files)
	for _, f := range used.byPath {
		later.Files = append(later.Files, f.File)
	}
	slices.SortFunc(later.Files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	later.Directories = union(j.Directories, slices.Collect(maps.Keys(used.directories)))
	later.SocketDirectories, later.UNIXSockets = slices.Clone(j.SocketDirectories), slices.Clone(j.UNIXSockets)
	if err := later.addUNIXSockets(used); err != nil {
		return nil, err
	}
	if !j.Own.PID {
		now, err := numbers(truth)
		if err != nil {
			return nil, err
		}
		later.Numbers = union(j.Numbers, now)
	}
	if later.uses() == j.uses() {
		return nil, nil
	}
	return &later, later.Validate()
}

// uses counts what [Later] may add to.
func (j *Job) uses() int {
	return len(j.Files) + len(j.Directories) + len(j.SocketDirectories) + len(j.UNIXSockets) + len(j.Numbers)
}

func union[T cmp.Ordered](a, b []T) []T {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// JudgeLater finds out at the destination whether a job can come that uses more than when it was
// judged. It touches nothing.
func JudgeLater(ctx context.Context, hook *hooks.Hook, j *Job, policy Copy) (*Judgement, error) {
	if err := j.Validate(); err != nil {
		return nil, preflight.AsRefusal(err)
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	pids, err := pidFindings(ctx, j)
	if err != nil {
		return nil, err
	}
	files, look, err := fileFindings(j, boot, policy)
	if err != nil {
		return nil, err
	}
	judgement := Judged(hook.Filled(), name, slices.Concat(pids, files))
	judgement.Copies, judgement.Makes = look.copies, look.makes
	return judgement, nil
}
