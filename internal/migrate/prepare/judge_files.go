package prepare

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/units"
)

const (
	// maxCopied is the largest file that a migration copies, in bytes.
	maxCopied = 64 << 20
	// maxNamed is how many files or directories get a finding of their own.
	maxNamed = 20
)

// networkFileSystems are those that several hosts can have mounted at once, by the kernel's names.
var networkFileSystems = map[string]bool{
	"nfs": true, "nfs4": true, "cifs": true, "smb3": true, "ceph": true, "lustre": true, "gpfs": true, "beegfs": true, "glusterfs": true,
	"fuse.glusterfs": true, "fuse.sshfs": true, "fuse.juicefs": true, "fuse.cephfs": true, "weka": true, "wekafs": true, "panfs": true, "pvfs2": true,
	"afs": true, "9p": true, "virtiofs": true, "ocfs2": true, "gfs2": true,
}

// copyable reports whether a migration can copy a file.
func (j *Job) copyable(f *File) bool {
	return !f.Pipe && !f.Shared && f.Size <= maxCopied && j.mayBring(f)
}

// mayBring reports whether a job may bring a file to another host. A user can hold any file that is
// root's, and gets no rights by that; but root would make it there, such as one of /etc/sudoers.d.
func (j *Job) mayBring(f *File) bool {
	return f.Written || slices.ContainsFunc(j.Processes, func(p Process) bool { return p.RealUID == f.UID || p.RealUID == 0 })
}

// fileFindings look for the files and directories of a job on this host, which has this boot id.
func fileFindings(j *Job, bootID string, policy Copy) (findings preflight.Findings, look *fileLook, err error) {
	mounts, err := inventory.OwnMounts()
	if err != nil {
		return nil, nil, err
	}
	l := &fileLook{
		job: j, sameBoot: bootID == j.Host.BootID, policy: policy, mounts: byID(mounts),
		problems: make(map[preflight.Severity]preflight.Findings), more: make(map[preflight.Severity]int),
	}
	for n := range j.Files {
		l.file(n)
	}
	for _, dir := range j.Directories {
		l.directory(dir)
	}
	for n := range j.SocketDirectories {
		l.socketDirectory(n)
	}
	for _, s := range j.UNIXSockets {
		if !j.ownMount(s.Path) && s.SeenHere() {
			l.problem(preflight.SeverityError, s.PID, preflight.FindingSharedSocket, SharedSocket(s.Path), "bind it in a directory that is local to its host, or dump the job and restore it here")
		}
	}
	l.parents()
	return l.findings(), l, nil
}

// fileLook is a look for files.
type fileLook struct {
	job      *Job
	sameBoot bool // both ends are the same machine
	policy   Copy
	mounts   map[string]inventory.Mount

	problems    map[preflight.Severity]preflight.Findings
	more        map[preflight.Severity]int // problems beyond maxNamed
	there, same int                        // files; same are the very files of the job
	copies      []int                      // positions of the files that are to be copied here
	makes       []int                      // positions of the directories of sockets that are to be made here
	copied      uint64                     // bytes
	inMount     int                        // files that are not looked for
}

// file looks for one file.
func (l *fileLook) file(n int) {
	f := &l.job.Files[n]
	if l.job.ownMount(f.Path) {
		l.inMount++
		return
	}
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, f.Path, 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &stat)
	if err != nil {
		l.missing(n, err)
		return
	}
	if l.isSame(f, identity(stat, l.mounts)) {
		l.there++
		l.same++
		return
	}
	what := l.difference(f, stat)
	switch {
	case what == "":
		l.there++
	case f.Written && l.job.copyable(f) && l.policy == CopyChanged:
		l.copy(n)
	default:
		remedy := "put the job's file there, or move the job to a host that has it"
		if f.Written {
			remedy = "keep it on a file system that both hosts have mounted"
		}
		if f.Written && l.job.copyable(f) {
			remedy += ", or --copy-files=changed replaces this host's"
		}
		l.problem(preflight.SeverityError, f.PID, preflight.FindingFileDiffers, f.Path+" "+what, remedy)
	}
}

// isSame reports whether a file of this host is the very file that the job uses.
func (l *fileLook) isSame(f *File, here Identity) bool {
	there := f.Identity
	if here.Inode != there.Inode {
		return false
	}
	if l.sameBoot && here.Device == there.Device {
		return true
	}
	// The server of a network file system has it mounted as another.
	if !networkFileSystems[here.FileSystem] && !networkFileSystems[there.FileSystem] {
		return false
	}
	return here.FileSystem == there.FileSystem && here.Source == there.Source || here.Modified.Equal(there.Modified)
}

// difference says in what a file of this host differs from the job's, as far as criu would refuse
// it or the job would notice; empty if in nothing.
func (l *fileLook) difference(f *File, stat unix.Statx_t) string {
	if uint32(stat.Mode) != f.Mode {
		return fmt.Sprintf("has mode %04o, and must have %04o", stat.Mode&0o7777, f.Mode&0o7777)
	}
	if f.Pipe {
		return ""
	}
	if int64(stat.Size) != f.Size && !f.AppendOnly {
		return fmt.Sprintf("has %d bytes, but the job's has %d", stat.Size, f.Size)
	}
	switch {
	case f.AppendOnly: // what it has written would be in two halves, one on each host
		return "is a different file here, to which the job would append"
	case f.Written:
		return "is not the file into which the job writes"
	}
	if f.BuildID != "" {
		if here := buildID(f.Path); here != f.BuildID {
			return fmt.Sprintf("is a different build (%s) than the job's (%s)", here, f.BuildID)
		}
	}
	return ""
}

func (l *fileLook) missing(n int, err error) {
	f := &l.job.Files[n]
	cause := "does not exist here"
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		cause = "cannot be examined: " + err.Error()
	}
	remedy := "put it there"
	switch {
	case f.Pipe:
		remedy = "create the pipe: mkfifo " + f.Path
	case f.Shared:
		remedy = "other programs write into it too: keep it on a file system that both hosts have mounted"
	case !l.job.mayBring(f):
		remedy = fmt.Sprintf("it belongs to user %d, who runs no process of the job, so --copy-files does not copy it: put it there", f.UID)
	case !l.job.copyable(f):
		remedy = fmt.Sprintf("it has %s, but --copy-files copies only files of up to %s: put it there, or keep it on a file system that both hosts have mounted", size(uint64(f.Size)), size(maxCopied))
	case l.policy != CopyNone:
		l.copy(n)
		return
	case networkFileSystems[f.Identity.FileSystem]:
		remedy = fmt.Sprintf("mount %s (%s) here, or --copy-files copies it", f.Identity.Source, f.Identity.FileSystem)
	default:
		remedy += ", or --copy-files copies it"
	}
	l.problem(preflight.SeverityError, f.PID, preflight.FindingFileMissing, f.Path+" "+cause, remedy)
}

func (l *fileLook) copy(n int) {
	l.copies = append(l.copies, n)
	l.copied += uint64(l.job.Files[n].Size)
}

func (l *fileLook) directory(path string) {
	if l.job.ownMount(path) {
		return
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return
	case err == nil:
		l.problem(preflight.SeverityError, 0, preflight.FindingDirectory, path+" is not a directory here", "make it a directory")
	default:
		l.problem(preflight.SeverityError, 0, preflight.FindingDirectory, path+" does not exist here, and the job has it open or works in it", "mkdir -p "+path)
	}
}

// parents looks for the directories that are to hold what is made here. No symbolic link may lead
// to one: whoever could change that would have root write elsewhere.
func (l *fileLook) parents() {
	known := make(map[string]bool)
	for _, n := range l.makes {
		known[l.job.SocketDirectories[n].Path] = true
	}
	for _, n := range l.copies {
		l.parent(l.job.Files[n].Path, l.job.Files[n].PID, known)
	}
	for _, n := range l.makes {
		l.parent(l.job.SocketDirectories[n].Path, l.job.SocketDirectories[n].PID, known)
	}
}

func (l *fileLook) parent(path string, pid int, known map[string]bool) {
	dir := filepath.Dir(path)
	if known[dir] {
		return
	}
	known[dir] = true
	opened, err := durable.OpenDir(dir)
	switch {
	case err == nil:
		opened.Close()
	case errors.Is(err, unix.ENOENT):
		l.problem(preflight.SeverityError, pid, preflight.FindingDirectory, dir+" does not exist here, and "+path+" is to be created in it", "mkdir -p "+dir)
	default:
		l.problem(preflight.SeverityError, pid, preflight.FindingDirectory, fmt.Sprintf("%s is to be created in %s, which is not a directory here, or is reached through a symbolic link (%v)", path, dir, err),
			"put it there yourself, or make "+dir+" a directory as it is at the source")
	}
}

func (l *fileLook) problem(severity preflight.Severity, pid int, name, message, remedy string) {
	if len(l.problems[severity]) == maxNamed {
		l.more[severity]++
		return
	}
	l.problems[severity] = append(l.problems[severity], preflight.Finding{
		Name: name, Severity: severity, PID: pid, Process: l.job.nameOf(pid), Message: message, Remedy: remedy,
	})
}

func (l *fileLook) findings() preflight.Findings {
	message := fmt.Sprintf("here: %d of %s of the job", l.there, units.Count(len(l.job.Files), "file"))
	if l.same > 0 {
		message += fmt.Sprintf(", %d of them the very same file", l.same)
	}
	if len(l.copies) > 0 {
		message += fmt.Sprintf("; %d are copied, %s", len(l.copies), size(l.copied))
	}
	findings := preflight.Findings{preflight.Fine(preflight.FindingFiles, message)}
	for _, severity := range []preflight.Severity{preflight.SeverityWarning, preflight.SeverityError} {
		problems := l.problems[severity]
		if more := l.more[severity]; more > 0 {
			problems[maxNamed-1].Message += fmt.Sprintf("; and likewise %d more files or directories", more)
		}
		findings = append(findings, problems...)
	}
	if len(l.job.Mounts) > 0 {
		paths := make([]string, 0, maxNamed)
		for _, m := range l.job.Mounts[:min(maxNamed, len(l.job.Mounts))] {
			paths = append(paths, m.Path)
		}
		message := fmt.Sprintf("the job has %s that its host does not have (%s): %s below are not checked here",
			units.Count(len(l.job.Mounts), "mount"), strings.Join(paths, ", "), units.Count(l.inMount, "file"))
		findings = append(findings, preflight.New(preflight.FindingMounts, message, "make the same mounts for the job on this host"))
	}
	return findings
}

// ownMount reports whether a path lies below a mount that only the job has.
func (j *Job) ownMount(path string) bool {
	for _, m := range j.Mounts {
		if path == m.Path || strings.HasPrefix(path, strings.TrimSuffix(m.Path, "/")+"/") {
			return true
		}
	}
	return false
}
