package cudackpt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/fault"
)

// mappedFile is a file that is mapped into a process, as /proc/PID/maps shows it.
type mappedFile struct {
	path   string // as the mapping process names it
	device string // "fe:01"
	inode  string
}

// same reports whether both are the same file, or two copies of the same version of the
// library. Containers have the host's library mounted or copied in under the file name that
// holds its version, "libcuda.so.580.159.04".
func (f mappedFile) same(other mappedFile) bool {
	if f.device == other.device && f.inode == other.inode {
		return true
	}
	name := filepath.Base(f.path)
	return name == filepath.Base(other.path) && strings.Count(name, ".") > 2
}

// LibraryMismatchError says that a process has a different libcuda mapped from the one that
// would drive it.
type LibraryMismatchError struct {
	explained
	PID    int
	Target string // the file that the process has mapped
	Ours   string // the file that this driver was loaded from
}

// Error names the process and both files.
func (e *LibraryMismatchError) Error() string {
	return fmt.Sprintf("process %d %s", e.PID, e.explained.Error())
}

// CheckLibrary compares the libcuda that a process has mapped with the one from which this
// driver was loaded. The two talk a private protocol to each other, so both must be of the same
// version. If they are not, the error is a [*LibraryMismatchError]. If the process has no
// libcuda mapped, the result is nil. CheckLibrary reads only /proc and does not ask the driver.
func (d *Driver) CheckLibrary(pid int) error {
	if pid <= 0 {
		return fmt.Errorf("%w: %d is not a process ID", ErrInvalidArgument, pid)
	}
	ours, err := mappedAt("self", func(path string, from, to uint64) bool {
		return from <= uint64(d.anchor) && uint64(d.anchor) < to
	})
	if err != nil {
		return err
	}
	if ours == nil {
		return errors.New("the driver's library is not mapped in this program")
	}
	target, err := mappedAt(strconv.Itoa(pid), func(path string, from, to uint64) bool {
		return drivers.IsLibcuda(path)
	})
	if err != nil {
		return err
	}
	if target == nil || ours.same(*target) {
		return nil
	}
	return mismatch(pid, target.path, ours.path)
}

func mismatch(pid int, target, ours string) *LibraryMismatchError {
	meaning := fmt.Sprintf("uses %s, but this program would drive it with %s: both must be the same version of the driver's library", target, ours)
	remedy := "name the one that the process uses (usually a cuda-compat library in a container)"
	if target == ours { // in its mount namespace, or before an upgrade of the driver
		meaning = fmt.Sprintf("uses another file of the name %s than this program sees there: both must be the same version of the driver's library", ours)
		remedy = "if it is in a container, name a copy of that file; if the driver was upgraded meanwhile, start the process again"
	}
	return &LibraryMismatchError{explained: *fault.New(meaning, remedy), PID: pid, Target: target, Ours: ours}
}

// mappedAt returns the first file mapping of a process that wanted accepts, or nil.
func mappedAt(process string, wanted func(path string, from, to uint64) bool) (*mappedFile, error) {
	const most = 64 << 20 // bytes: a process may map as many files as it likes, under paths of any length
	maps, err := os.Open(filepath.Join("/proc", process, "maps"))
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(io.LimitReader(maps, most))
	for lines.Scan() {
		// from-to perms offset dev inode path; the path may contain blanks
		fields := strings.SplitN(lines.Text(), " ", 6)
		if len(fields) < 6 {
			continue
		}
		path := strings.TrimSuffix(strings.TrimLeft(fields[5], " "), " (deleted)")
		low, high, _ := strings.Cut(fields[0], "-")
		from, err := strconv.ParseUint(low, 16, 64)
		if err != nil {
			continue
		}
		to, err := strconv.ParseUint(high, 16, 64)
		if err != nil || !strings.HasPrefix(path, "/") || !wanted(path, from, to) {
			continue
		}
		return &mappedFile{path: path, device: fields[3], inode: fields[4]}, nil
	}
	return nil, lines.Err()
}
