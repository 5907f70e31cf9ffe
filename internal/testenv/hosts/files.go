package hosts

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// file writes a file of the host's own.
func (h *Host) file(name, text string) {
	t := h.pair.t
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o644)
	if strings.HasPrefix(name, "home/") || strings.HasSuffix(name, "shadow") {
		mode = 0o600
	}
	if err := os.WriteFile(h.path(name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// SmallDisk mounts a file system of a given size (such as "32m") at a directory of the host.
func (h *Host) SmallDisk(dir, size string) {
	h.pair.t.Helper()
	h.Run("mkdir", "-p", dir)
	h.Run("mount", "-t", "tmpfs", "-o", "mode=0755,size="+size, "tmpfs", dir)
}

// passwd returns the machine's users and the one that sshd needs.
func passwd() string {
	text, _ := os.ReadFile("/etc/passwd")
	users := string(text)
	if !strings.Contains("\n"+users, "\nsshd:") {
		users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
	}
	return users
}

// homeOfRoot returns the home that /etc/passwd names, which ssh uses rather than $HOME.
func homeOfRoot() string {
	for line := range strings.Lines(passwd()) {
		if fields := strings.Split(line, ":"); len(fields) > 5 && fields[0] == "root" {
			return fields[5]
		}
	}
	return "/root"
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// copyLinks copies the symbolic links of a directory: some that lead to programs are there.
func copyLinks(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSymlink == 0 {
			continue
		}
		target, err := os.Readlink(filepath.Join(from, entry.Name()))
		if err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(to, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
