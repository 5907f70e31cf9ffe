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

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/proc"
)

// watch is a file or directory that an inotify or fanotify descriptor watches. criu opens the handle that
// the kernel tells of it, on all mounts of its file system. If that fails, as on an overlay without nfs_export,
// criu looks for the inode under the names that it is told of (--irmap-scan-path), and in few other places.
type watch struct {
	*file
	target inode
	handle unix.FileHandle
}

// inode tells a file from all others.
type inode struct{ device, number uint64 }

// watches finds the names of what is watched and cannot be opened by its handle, and refuses what has none.
func (s *snapshot) watches(w *Wanted) {
	var mounts []mounted
	var unopened []watch
	refuse := func(f watch, what string) {
		w.Findings = append(w.Findings, f.of.about(preflight.New(preflight.FindingUnsupportedFile,
			fmt.Sprintf("watches (descriptor %s, %s) %s, and criu cannot dump that watch", f.number, strings.TrimPrefix(f.link, "anon_inode:"), what),
			"let the job do without it (many programs can poll), or watch another file system; an overlay can be mounted with -o index=on,nfs_export=on")))
	}
	for f := range s.open {
		if f.link == fanotify && f.info().Field("fanotify sdev") != "" {
			refuse(watch{file: f}, "a whole file system")
		}
		for _, watched := range f.watched() {
			if mounts == nil {
				mounts = s.mounted()
			}
			opened, named := watched.open(mounts)
			switch at := mountsOf(mounts, watched.target.device); {
			case !opened:
				unopened = append(unopened, watched)
			case !named && (at[0].kind == "tmpfs" || at[0].kind == "devtmpfs"): // elsewhere criu opens the handle at the restore, too
				refuse(watched, "a file without a name on "+describeMount(at))
			}
		}
	}
	if len(unopened) == 0 {
		return
	}
	names := namesOf(unopened, slices.DeleteFunc(slices.Clone(mounts), func(m mounted) bool {
		return !slices.ContainsFunc(unopened, func(w watch) bool { return w.target.device == m.device })
	}))
	for _, watched := range unopened {
		name := names[watched.target]
		if name == "" {
			refuse(watched, "a file whose name was not found on "+describeMount(mountsOf(mounts, watched.target.device)))
		} else if !slices.Contains(w.Options.Watched, name) {
			w.Options.Watched = append(w.Options.Watched, name)
			shown := proc.Printable(name)
			w.add("--irmap-scan-path "+shown, fmt.Sprintf("process %d watches %s, which criu can find by its name alone", watched.of.pid, shown), "")
		}
	}
}

const fanotify = "anon_inode:[fanotify]"

// watched parses what a descriptor watches. The kernel prints all numbers in base 16.
func (f *file) watched() (all []watch) {
	if f.link != "anon_inode:inotify" && f.link != fanotify {
		return nil
	}
	for _, line := range slices.Concat(f.info().Fields("inotify wd"), f.info().Fields("fanotify ino")) {
		w := watch{file: f}
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

// mounted is a mount in the namespace of the root, where criu looks.
type mounted struct {
	device uint64
	at     string // as the job knows it
	root   string // how we reach the root of that namespace
	kind   string
}

var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mounted lists the mounts; it is never nil.
func (s *snapshot) mounted() []mounted {
	root, reader, at := s.looks[0], os.Getpid(), "/" // the process may not see all of them (chroot)
	if !root.inOurs("mnt") {
		reader, at = root.pid, fmt.Sprintf("/proc/%d/root", root.pid)
	}
	all := []mounted{}
	found, _ := procfs.GetProcMounts(reader) // of one that has ended there are none
	for _, m := range found {
		var major, minor uint32
		if _, err := fmt.Sscanf(m.MajorMinorVer, "%d:%d", &major, &minor); err == nil {
			all = append(all, mounted{unix.Mkdev(major, minor), unescapeMount.Replace(m.MountPoint), at, m.FSType})
		}
	}
	return all
}

func mountsOf(all []mounted, device uint64) []mounted {
	return slices.DeleteFunc(slices.Clone(all), func(m mounted) bool { return m.device != device })
}

func describeMount(at []mounted) string {
	if len(at) == 0 {
		return "a file system that is not mounted"
	}
	return proc.Printable(fmt.Sprintf("the file system at %s (%s)", at[0].at, at[0].kind))
}

// open tries whether criu could open the handle, and whether it would find a name then.
func (w watch) open(all []mounted) (opened, named bool) {
	for _, m := range mountsOf(all, w.target.device) {
		dir, err := unix.Open(filepath.Join(m.root, m.at), unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
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
		if err == nil && unix.Stat(filepath.Join(m.root, name), &stat) == nil && stat.Ino == w.target.number {
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
func namesOf(files []watch, in []mounted) map[inode]string {
	wanted := make(map[inode]bool)
	for _, f := range files {
		wanted[f.target] = true
	}
	found := make(chan map[inode]string, 1)
	go func() {
		names, looked, end := make(map[inode]string), 0, time.Now().Add(nameTime)
		for _, m := range in {
			top := filepath.Join(m.root, m.at)
			_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
				var stat unix.Stat_t
				if looked++; len(names) == len(wanted) || looked > nameFiles || time.Now().After(end) {
					return fs.SkipAll
				}
				if unix.Lstat(path, &stat) != nil {
					return nil
				}
				if is := (inode{stat.Dev, stat.Ino}); wanted[is] && names[is] == "" {
					names[is] = filepath.Join(m.at, strings.TrimPrefix(path, top))
				}
				if err != nil || entry.IsDir() && stat.Dev != m.device {
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
