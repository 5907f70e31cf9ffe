package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// A directory in which everybody may make files, such as /tmp, holds directories that programs remove when they end.
// The kernel unmounts what others have mounted on a directory that is removed. So a job that needs a private
// directory there has all of the temporary directory for itself, and sees in it what the host has beside its own.

// mostKept is how many files and directories of the host's are mounted in a job's own temporary directory.
const mostKept = 5000

// temporary returns the topmost directory above this one in which everybody may make files; "" if there is none.
func temporary(dir string) (top string) {
	for above := filepath.Dir(dir); above != "/"; above = filepath.Dir(above) {
		info, err := os.Lstat(above)
		if err == nil && info.IsDir() && info.Mode()&fs.ModeSticky != 0 && info.Mode()&0o002 != 0 {
			top = above
		}
	}
	return top
}

// keepApart decides where a job has the directories of which it gets copies. One in a temporary directory is a part
// of that, unless the job of the image has that of its own already.
func keepApart(dirs []string) (private, parts []string) {
	for _, dir := range dirs {
		if top := temporary(dir); top != "" && !slices.Contains(dirs, top) {
			parts = append(parts, dir)
			dir = top
		}
		if !slices.Contains(private, dir) {
			private = append(private, dir)
		}
	}
	return private, parts
}

// around lists the temporary directories that the job has for itself.
func (from *origin) around() (dirs []string) {
	for _, dir := range from.Private {
		if slices.ContainsFunc(from.Parts, func(part string) bool { return isBelow(part, dir) }) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// copies lists the directories of which the job has copies.
func (from *origin) copies() []string {
	around := from.around()
	whole := slices.DeleteFunc(slices.Clone(from.Private), func(dir string) bool { return slices.Contains(around, dir) })
	return append(whole, from.Parts...)
}

// deepest returns the innermost of these directories in which a path is, or which it is; "" if there is none.
func deepest(path string, dirs []string) (innermost string) {
	for _, dir := range dirs {
		if len(dir) > len(innermost) && isBelow(path, dir) {
			innermost = dir
		}
	}
	return innermost
}

// layOutTemporary makes a temporary directory of a job's own, with copies of parts of the host's. It returns what the
// job is to see there of the host's.
func (s *starter) layOutTemporary(ctx context.Context, c store.Checkpoint, dir, to string) (kept []string, err error) {
	elsewhere := func(path string) bool { return !isBelow(path, dir) }
	own := slices.DeleteFunc(append(slices.Clone(s.record.Image.Parts), s.record.Image.Dir), elsewhere)
	in := func(path string) string { return filepath.Join(to, strings.TrimPrefix(path, dir)) }
	if kept, err = frame(dir, own, in); err != nil {
		return nil, err
	}
	for _, path := range own {
		if path == s.record.Image.Dir { // the job's directory is mounted there
			err = os.MkdirAll(in(path), 0o755)
		} else if err = os.MkdirAll(filepath.Dir(in(path)), 0o755); err == nil {
			err = s.copyPrivate(ctx, c, path, path, in(path))
		}
		if err != nil {
			return nil, fmt.Errorf("private copy of %s: %w", path, err)
		}
	}
	return kept, nil
}

// frame makes a directory like one of the host's, and those in it that lead to a job's own. For all else that is
// there it makes what the host's can be mounted on; it returns the paths of these. in says where a path is for the
// job.
func frame(dir string, own []string, in func(path string) string) (kept []string, err error) {
	at, err := durable.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	entries, err := os.ReadDir(proc.PathIn(at, ""))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(in(dir), 0o700); err != nil {
		return nil, err
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch leads := func(to string) bool { return isBelow(to, path) }; {
		case slices.Contains(own, path):
			continue
		case slices.ContainsFunc(own, leads) && entry.IsDir():
			var more []string
			more, err = frame(path, own, in)
			kept = append(kept, more...)
		case entry.IsDir():
			kept, err = append(kept, path), os.Mkdir(in(path), 0o700)
		case entry.Type() == fs.ModeSymlink:
			var target string
			if target, err = os.Readlink(proc.PathIn(at, entry.Name())); err == nil {
				err = os.Symlink(target, in(path))
			}
		default:
			kept, err = append(kept, path), os.WriteFile(in(path), nil, 0o600)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be removed meanwhile
			return nil, err
		}
		if len(kept) > mostKept {
			text := fmt.Sprintf("%s has more than %d entries, and the job is to see them in a %[1]s of its own", dir, mostKept)
			return nil, fault.New(text,
				"remove what nobody needs there, or give the job a copy of all of it with --private "+dir)
		}
	}
	return kept, like(at, in(dir))
}

// like gives a directory the owner and permissions of another.
func like(other *os.File, dir string) error {
	info, err := os.Stat(proc.PathIn(other, ""))
	if err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return errors.Join(os.Chown(dir, int(stat.Uid), int(stat.Gid)), os.Chmod(dir, info.Mode()))
}
