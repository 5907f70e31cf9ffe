package preflight

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ghostLimit is criu's default for the largest unlinked file that it puts into an image,
// in bytes.
const ghostLimit = 1 << 20

// unlinked are files that a tree uses by a name that was removed.
type unlinked struct {
	largest     uint64 // of those without any name: criu puts such a file into the image
	largestPath string
	removed     []RemovedName
}

// RemovedName is the name by which a process uses a file, and which was removed although the
// file has another one. A named semaphore is made like this, such as those of Python's
// multiprocessing with spawned processes.
type RemovedName struct {
	PID  int
	Path string // as the process sees it
	Link string // the file itself, below /proc/PID
}

// unlinked looks at what the processes have open or mapped.
func (t *tree) unlinked() unlinked {
	var u unlinked
	look := func(f *file) {
		switch kind := f.kind(); {
		case f.stat().Nlink > 0 && kind != unix.S_IFDIR:
			u.removed = append(u.removed, RemovedName{PID: f.of.pid, Path: f.name(), Link: f.path()})
		case kind == unix.S_IFREG && f.stat().Size > u.largest:
			u.largest, u.largestPath = f.stat().Size, f.name()
		}
	}
	for f := range t.open {
		if f.isUnlinked() {
			look(f)
		}
	}
	for _, l := range t.looks {
		for _, m := range l.mapped {
			if m.isUnlinked() {
				look(m.file)
			}
		}
	}
	return u
}

// isUnlinked reports whether this is an unlinked file of a file system. criu has other ways for
// memory that only looks like one.
func (f *file) isUnlinked() bool {
	return f.removed() && !slices.ContainsFunc([]string{"/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/secretmem", "/anon_hugepage", "/dev/nvidia"}, func(prefix string) bool {
		return strings.HasPrefix(f.link, prefix)
	})
}

// ghostNeed returns criu's limit for unlinked files, if its default is too small.
func (u unlinked) ghostNeed() (limit uint32, need Need) {
	const mib = 1 << 20
	size := (u.largest + mib - 1) / mib * mib
	if u.largest <= ghostLimit || size >= 1<<32 {
		return 0, Need{}
	}
	return uint32(size), Need{
		Option: fmt.Sprintf("--ghost-limit %dM", size/mib),
		Why:    fmt.Sprintf("%s is unlinked and in use, and goes into the image", u.largestPath),
	}
}

// removedFindings refuses removed files and directories whose names criu could not use for the
// moment of a restore: it makes them again by their old names, and then removes them.
func (t *tree) removedFindings() Findings {
	var findings Findings
	known := make(map[string]uint64) // inodes of removed directories
	for _, l := range t.looks {
		for _, f := range slices.Concat(l.own, l.open) {
			isProgram := f.at == "exe"
			if !f.isUnlinked() || isProgram || strings.HasPrefix(f.link, "/proc/") || f.kind() == 0 || f.stat().Nlink > 0 && f.kind() != unix.S_IFDIR {
				continue
			}
			if why := f.unusable(known); why != "" {
				findings = append(findings, l.about(refuse(FindingUnrestorable, fmt.Sprintf("has %s %s, which was removed, and criu could not restore it: %s", f.name(), f.how, why),
					"let the job close or leave it, or rename what is in its place")))
			}
		}
	}
	return findings
}

// unusable says why a removed name cannot be used again; "" if it can.
func (f *file) unusable(known map[string]uint64) string {
	at := f.name()
	if !f.of.inOurs("mnt") {
		at = filepath.Join("/proc", strconv.Itoa(f.of.pid), "root", at)
	}
	parent, err := os.Stat(filepath.Dir(at))
	if errors.Is(err, unix.ENOTDIR) || err == nil && !parent.IsDir() {
		return "a part of its path is no directory any more"
	}
	if len(filepath.Base(at)) > 235 { // criu appends ".cr.ID.ghost"
		return "its name is too long"
	}
	if f.kind() != unix.S_IFDIR {
		return ""
	}
	if _, err := os.Lstat(at); err == nil {
		return "something else has this name now"
	}
	if other, is := known[at]; is && other != f.stat().Ino {
		return "it is the second of this name"
	}
	known[at] = f.stat().Ino
	return ""
}
