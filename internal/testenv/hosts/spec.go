package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
)

// specVariable is how init gets the [spec].
const specVariable = "CUCRIU_TEST_HOST_SPEC"

// spec is what init makes of its namespaces.
type spec struct {
	Name      string
	FirstPID  int
	Binds     []bind   // directories and files of this host in place of the machine's
	Keep      []string // paths below those directories that stay what they are
	Hide      []string // paths that are not on this host
	Clock     time.Duration
	BootID    string // a file; "" for that of the machine
	MachineID string // a file
}

// bind is a bind mount. Without a target in the machine's file system there is none.
type bind struct{ Source, Target string }

func (s spec) variable() (string, error) {
	data, err := json.Marshal(s)
	return specVariable + "=" + string(data), err
}

// mount makes the file system of the host.
func (s spec) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	// One mount may hide the source of the next.
	binds, err := openAll(s.Binds)
	if err != nil {
		return err
	}
	var kept []bind
	for _, path := range s.Keep {
		kept = append(kept, bind{path, path})
	}
	keep, err := openAll(kept)
	if err != nil {
		return err
	}
	for _, b := range binds {
		if _, err := os.Stat(b.Target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := b.mount(); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	for _, b := range keep {
		if err := b.keep(); err != nil {
			return err
		}
	}
	if err := s.mountProc(); err != nil {
		return err
	}
	return s.hide()
}

func (s spec) hide() error {
	names := make(map[string][]string)
	for _, path := range s.Hide {
		names[filepath.Dir(path)] = append(names[filepath.Dir(path)], filepath.Base(path))
	}
	for dir, names := range names {
		if err := sandbox.Hide(dir, names); err != nil {
			return fmt.Errorf("hide %v in %s: %w", names, dir, err)
		}
	}
	if len(names["/dev"]) > 0 {
		return sandbox.KeepHidden("/proc/driver/nvidia/params", "/run/nvidia-params")
	}
	return nil
}

func (s spec) mountProc() error {
	ids := []bind{{s.BootID, "/proc/sys/kernel/random/boot_id"}, {s.MachineID, "/sys/class/dmi/id/product_uuid"}}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Appendln(nil, s.FirstPID-1), 0); err != nil {
		return err
	}
	for _, b := range ids {
		target, err := filepath.EvalSymlinks(b.Target)
		if b.Source == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = unix.Mount(b.Source, target, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", b.Target, err)
		}
	}
	return nil
}

// opened is a bind mount whose source is found whatever has been mounted since.
type opened struct {
	bind
	fd   int
	stat unix.Stat_t
}

func openAll(binds []bind) ([]opened, error) {
	var all []opened
	for _, b := range binds {
		fd, err := unix.Open(b.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Source, err)
		}
		o := opened{bind: b, fd: fd}
		if err := unix.Fstat(fd, &o.stat); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Source, err)
		}
		all = append(all, o)
	}
	return all, nil
}

func (o opened) mount() error {
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", o.fd), o.Target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", o.Source, o.Target, err)
	}
	return nil
}

// keep mounts a path at itself, if it is hidden.
func (o opened) keep() error {
	var now unix.Stat_t
	if err := unix.Stat(o.Target, &now); err == nil && now.Dev == o.stat.Dev && now.Ino == o.stat.Ino {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(o.Target), 0o755); err != nil {
		return err
	}
	if o.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.MkdirAll(o.Target, 0o755); err != nil {
			return err
		}
	} else if err := os.WriteFile(o.Target, nil, 0o600); err != nil {
		return err
	}
	return o.mount()
}
