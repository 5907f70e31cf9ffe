package inspect

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// watch is a file or directory that an inotify or fanotify descriptor watches. criu opens the handle that
// the kernel tells of it, on all mounts of its file system. If that fails, as on an overlay without nfs_export,
// criu looks for the inode under the names that it is told of (--irmap-scan-path), and in few other places.
type watch struct {
	*inventory.File
	target inode
	handle unix.FileHandle
}

// inode tells a file from all others.
type inode struct{ device, number uint64 }

// watches finds the names of what is watched and cannot be opened by its handle, and refuses what has none.
func (s *snapshot) watches(w *Wanted) {
	var unopened []watch
	refuse := func(f watch, what string) {
		w.Findings = append(w.Findings, about(f.Of, preflight.New(preflight.FindingUnsupportedFile,
			fmt.Sprintf("watches (descriptor %s, %s) %s, and criu cannot dump that watch",
				f.Number, strings.TrimPrefix(f.Link, "anon_inode:"), what),
			"let the job do without it (many programs can poll), or watch another file system; an overlay can be mounted with -o index=on,nfs_export=on")))
	}
	for f := range s.Open {
		if f.Link == fanotify && f.Info().Field("fanotify sdev") != "" {
			refuse(watch{File: f}, "a whole file system")
		}
		for _, watched := range watched(f) {
			opened, named := watched.open(s)
			switch at := mountsOf(s.Mounts(), watched.target.device); {
			case !opened:
				unopened = append(unopened, watched)
			// Elsewhere criu opens the handle at the restore, too.
			case !named && (at[0].Kind == "tmpfs" || at[0].Kind == "devtmpfs"):
				refuse(watched, "a file without a name on "+describeMount(at))
			}
		}
	}
	if len(unopened) == 0 {
		return
	}
	names := namesOf(unopened, s.MountRoot(), slices.DeleteFunc(slices.Clone(s.Mounts()), func(m inventory.Mount) bool {
		return !slices.ContainsFunc(unopened, func(w watch) bool { return w.target.device == m.Device })
	}))
	for _, watched := range unopened {
		name := names[watched.target]
		if name == "" {
			refuse(watched, "a file whose name was not found on "+describeMount(mountsOf(s.Mounts(), watched.target.device)))
		} else if !slices.Contains(w.Options.Watched, name) {
			w.Options.Watched = append(w.Options.Watched, name)
			shown := proc.Printable(name)
			w.add("--irmap-scan-path "+shown,
				fmt.Sprintf("process %d watches %s, which criu can find by its name alone", watched.Of.PID, shown), "")
		}
	}
}

const fanotify = "anon_inode:[fanotify]"

// watched parses what a descriptor watches. The kernel prints all numbers in base 16.
func watched(f *inventory.File) (all []watch) {
	if f.Link != "anon_inode:inotify" && f.Link != fanotify {
		return nil
	}
	for _, line := range slices.Concat(f.Info().Fields("inotify wd"), f.Info().Fields("fanotify ino")) {
		w := watch{File: f}
		var kind uint64
		for i, field := range strings.Fields(line) {
			name, value, named := strings.Cut(field, ":")
			if i == 0 && !named { // the watch of inotify; of fanotify, what follows "ino:"
				name, value = "ino", field
			}
			number, _ := strconv.ParseUint(value, 16, 64)
			switch name {
			case "ino":
				w.target.number = number
			case "sdev": // in the kernel's own form
				w.target.device = unix.Mkdev(uint32(number>>20), uint32(number&(1<<20-1)))
			case "fhandle-type":
				kind = number
			case "f_handle":
				handle, _ := hex.DecodeString(value)
				w.handle = unix.NewFileHandle(int32(kind), handle)
			}
		}
		all = append(all, w)
	}
	return all
}

func mountsOf(all []inventory.Mount, device uint64) []inventory.Mount {
	return slices.DeleteFunc(slices.Clone(all), func(m inventory.Mount) bool { return m.Device != device })
}

func describeMount(at []inventory.Mount) string {
	if len(at) == 0 {
		return "a file system that is not mounted"
	}
	return proc.Printable(fmt.Sprintf("the file system at %s (%s)", at[0].At, at[0].Kind))
}

// open tries whether criu could open the handle, and whether it would find a name then.
func (w watch) open(s *snapshot) (opened, named bool) {
	root := s.MountRoot()
	for _, m := range mountsOf(s.Mounts(), w.target.device) {
		dir, err := unix.Open(filepath.Join(root, m.At), unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		fd, err := unix.OpenByHandleAt(dir, w.handle, unix.O_PATH|unix.O_CLOEXEC)
		unix.Close(dir)
		if err != nil {
			continue
		}
		opened = true
		name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		unix.Close(fd)
		var stat unix.Stat_t
		if err == nil && unix.Stat(filepath.Join(root, name), &stat) == nil && stat.Ino == w.target.number {
			return true, true
		}
	}
	return opened, false
}

// How long, and how far, names are looked for.
const (
	nameTime  = 3 * time.Second
	nameFiles = 1 << 20
)

// namesOf looks through file systems for the names of files, as the job knows them. Those may be slow, or hang.
func namesOf(files []watch, root string, in []inventory.Mount) map[inode]string {
	wanted := make(map[inode]bool)
	for _, f := range files {
		wanted[f.target] = true
	}
	found := make(chan map[inode]string, 1)
	go func() {
		names, looked, end := make(map[inode]string), 0, time.Now().Add(nameTime)
		for _, m := range in {
			top := filepath.Join(root, m.At)
			_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
				var stat unix.Stat_t
				if looked++; len(names) == len(wanted) || looked > nameFiles || time.Now().After(end) {
					return fs.SkipAll
				}
				if unix.Lstat(path, &stat) != nil {
					return nil
				}
				if is := (inode{stat.Dev, stat.Ino}); wanted[is] && names[is] == "" {
					names[is] = filepath.Join(m.At, strings.TrimPrefix(path, top))
				}
				if err != nil || entry.IsDir() && stat.Dev != m.Device {
					return fs.SkipDir
				}
				return nil
			})
		}
		found <- names
	}()
	select {
	case names := <-found:
		return names
	case <-time.After(nameTime + time.Second):
		return nil
	}
}
