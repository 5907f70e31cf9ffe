package inventory

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// The links of a process to what it executes, and to its directories.
const (
	AtProgram   = "exe"
	AtDirectory = "cwd"
	AtRoot      = "root"
)

// File is what a process has open or mapped, or uses as its program or directory.
type File struct {
	Of     *Process
	Number string // of the descriptor; empty if it is not open
	At     string // the link below /proc/PID, such as fd/5
	Link   string // where the link leads

	info once[proc.DescriptorInfo]
	stat once[unix.Statx_t]
}

// Mapping is a mapped file, or what the kernel shows as one.
type Mapping struct {
	*File
	proc.Range
	Shared, Writable bool
	fields           []string // of its line in /proc/PID/maps
}

// Backing returns the device and the inode that are mapped, as /proc/PID/maps has them; 0 if that is no file.
func (m Mapping) Backing() (device, inode uint64) {
	device, inode, _ = proc.MappedInode(m.fields)
	return device, inode
}

// TooLong takes the place of a link that cannot be read.
const TooLong = "a file whose path is longer than 4 KiB"

// Path is the link in /proc, by which the file itself can be reached.
func (f *File) Path() string { return "/proc/" + strconv.Itoa(f.Of.PID) + "/" + f.At }

// Name is the name of the file, which may have been removed.
func (f *File) Name() string { return strings.TrimSuffix(f.Link, " (deleted)") }

// Removed reports whether the name was removed.
func (f *File) Removed() bool { return strings.HasSuffix(f.Link, " (deleted)") }

// Descriptor is what /proc tells of the descriptor.
func (f *File) Descriptor() (proc.DescriptorInfo, error) {
	return f.info.get(func() (proc.DescriptorInfo, error) { return proc.ReadDescriptor(f.Of.PID, f.Number) })
}

// Info is [File.Descriptor]; it is empty if the descriptor has been closed.
func (f *File) Info() proc.DescriptorInfo {
	info, _ := f.Descriptor()
	return info
}

// Stat looks at the file, and does not wait for the server of its file system. The result is empty
// if the file is used no longer.
func (f *File) Stat() *unix.Statx_t {
	_, _ = f.stat.get(func() (stat unix.Statx_t, err error) {
		err = unix.Statx(unix.AT_FDCWD, f.Path(), unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &stat)
		return stat, err
	})
	return &f.stat.value
}

// Kind is the type of the file, such as S_IFREG; 0 if the file is used no longer.
func (f *File) Kind() uint16 { return f.Stat().Mode & unix.S_IFMT }

// Device is what a device file stands for.
func (f *File) Device() uint64 { return unix.Mkdev(f.Stat().Rdev_major, f.Stat().Rdev_minor) }

// Mount is the id of the mount through which the file is used; empty if that is not known. Linux
// has it from 5.8 on.
func (f *File) Mount() string { return mountOf(f.Stat()) }

func mountOf(stat *unix.Statx_t) string {
	if stat.Mask&unix.STATX_MNT_ID == 0 {
		return ""
	}
	return strconv.FormatUint(stat.Mnt_id, 10)
}

// Inode returns the inode of a socket or a pipe, which the kind names.
func (f *File) Inode(kind string) (uint64, bool) {
	number, isKind := strings.CutPrefix(f.Link, kind+":[")
	if !isKind {
		return 0, false
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	return inode, err == nil
}

// likeRemoved begin the names of memory that only looks like a removed file.
var likeRemoved = []string{"/memfd:", "/dev/zero", "/SYSV", "/[aio]", "/secretmem", "/anon_hugepage", "/dev/nvidia"}

// Unlinked reports whether this is an unlinked file of a file system.
func (f *File) Unlinked() bool {
	isLink := func(prefix string) bool { return strings.HasPrefix(f.Link, prefix) }
	return f.Removed() && !slices.ContainsFunc(likeRemoved, isLink)
}

// Share does something with a duplicate of the descriptor. It must not wait, or change what is open.
func (f *File) Share(do func(fd int) error) error {
	process, err := proc.Open(f.Of.PID)
	if err != nil {
		return err
	}
	defer process.Close()
	number, err := strconv.Atoi(f.Number)
	if err != nil {
		return err
	}
	fd, err := process.DuplicateDescriptor(number)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd)
}

var nvidiaDevice = regexp.MustCompile(`/dev/nvidia[^/]*(/[^/]+)?$`)

// HasDriverName reports whether the file is called like a device file of NVIDIA's driver.
func (f *File) HasDriverName() bool {
	return strings.Contains(f.Link, "/dev/nvidia") && nvidiaDevice.MatchString(f.Name())
}

// IsDriverDevice reports whether this is a device file of NVIDIA's driver. A program may have its own files in a
// folder such as /home/me/dev/nvidia-tests. It is true if that cannot be told.
func (f *File) IsDriverDevice() bool {
	return f.HasDriverName() && (f.Stat().Mask == 0 || f.Kind() == unix.S_IFCHR)
}
