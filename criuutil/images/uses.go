package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/crit/images/fdinfo"
	file_lock "github.com/checkpoint-restore/go-criu/v7/crit/images/file-lock"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/memfd"
	"github.com/checkpoint-restore/go-criu/v7/crit/images/tty"
	"google.golang.org/protobuf/proto"
)

// Uses is what a restore of images takes of the host, and what it finds there.
type Uses struct {
	// Kinds are the kinds of processes, files and images, in order.
	Kinds []string
	// Paths are those of files, FIFOs and sockets.
	Paths []string
	// Bytes is the size of the images.
	Bytes int64
	// Unsafe says why even a restore in namespaces of its own would touch what the dumped job
	// has; empty if it would not.
	Unsafe string
}

// ReadUses reads what a restore uses.
func ReadUses(dir string) (Uses, error) {
	var u Uses
	info, err := Read(dir)
	if err != nil {
		return u, err
	}
	kinds := make(map[string]bool)
	for _, p := range info.Processes {
		kinds["process "+withoutDigits(p.Name)] = true
		if p.State == "dead" {
			continue
		}
		areas, err := ReadAreas(dir, p.PID)
		if err != nil {
			return u, err
		}
		if len(areas.Own) > 0 {
			u.Unsafe = "it has huge pages, which come out of the host's pool"
		}
	}
	for _, sub := range []string{".", ParentName} {
		found, err := filepath.Glob(filepath.Join(dir, sub, "*.img"))
		if err != nil {
			return u, err
		}
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil {
				return u, err
			}
			u.Bytes += info.Size()
			kind := withoutDigits(filepath.Base(path))
			kinds[kind] = true
			if strings.HasPrefix(kind, "mountpoints-") || strings.HasPrefix(kind, "netns-") || strings.HasPrefix(kind, "userns-") || strings.HasPrefix(kind, "pidns-") {
				u.Unsafe = "it has namespaces of its own"
			}
		}
	}
	files, err := readImage(dir, FilesName, "FILES", &fdinfo.FileEntry{})
	if err != nil {
		return u, err
	}
	for _, message := range files {
		entry := message.(*fdinfo.FileEntry)
		kinds["file "+entry.GetType().String()] = true
		name := entry.GetReg().GetName()
		if socket := entry.GetUsk(); len(socket.GetName()) > 0 && socket.GetName()[0] != 0 {
			name = strings.TrimRight(string(socket.GetName()), "\x00")
			if !filepath.IsAbs(name) {
				name = filepath.Join(socket.GetNameDir(), name)
			}
		}
		if name != "" {
			u.Paths = append(u.Paths, filepath.Join("/", name))
		}
	}
	for kind := range kinds {
		u.Kinds = append(u.Kinds, kind)
	}
	slices.Sort(u.Kinds)
	for _, look := range []struct {
		name, kind string
		empty      proto.Message
		unsafe     func(proto.Message) bool
		why        string
	}{
		{"filelocks.img", "FILE_LOCKS", &file_lock.FileLockEntry{}, isLease, "it holds a lease on a file, which is broken when somebody else opens it"},
		{"tty-info.img", "TTY_INFO", &tty.TtyInfoEntry{}, isDeviceTerminal, "it has a terminal that is a device of the host"},
		{"memfd.img", "MEMFD_INODE", &memfd.MemfdInodeEntry{}, isHuge, "it has huge pages, which come out of the host's pool"},
	} {
		entries, err := readImage(dir, look.name, look.kind, look.empty)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return u, fmt.Errorf("what a restore uses: %w", err)
		}
		if slices.ContainsFunc(entries, look.unsafe) {
			u.Unsafe = look.why
		}
	}
	return u, nil
}

func isLease(m proto.Message) bool {
	const lease = 8 // FL_LEASE of criu's file-lock.h
	return m.(*file_lock.FileLockEntry).GetFlag()&lease != 0
}

func isDeviceTerminal(m proto.Message) bool {
	kind := m.(*tty.TtyInfoEntry).GetType()
	return kind != tty.TtyType_PTY && kind != tty.TtyType_CTTY && kind != tty.TtyType_EXT_TTY
}

func isHuge(m proto.Message) bool { return m.(*memfd.MemfdInodeEntry).HugetlbFlag != nil }

func withoutDigits(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, name)
}
