package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// A process decides how long some of its files below /proc are: its environment and command line are whatever part of
// its address space it names (PR_SET_MM), and it may map a file under a path of any length as often as it likes. So
// all of them are read with a bound, in bytes.
const (
	MostText = 8 << 20
	mostMaps = 64 << 20
)

var errTooMuch = errors.New("it is longer than any that is believed")

// ReadText reads a file below /proc of which a process decides how long it is.
func ReadText(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MostText+1))
	if err == nil && len(data) > MostText {
		return nil, fmt.Errorf("%s: %w", path, errTooMuch)
	}
	return data, err
}

// EachMapping does something with each line of /proc/PID/maps, until that fails.
func EachMapping(pid int, do func(line string) error) error { return eachLineOf(pid, "maps", do) }

// eachLineOf does something with each line of a file about the mappings of a process.
func eachLineOf(pid int, name string, do func(line string) error) error {
	file, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return GoneOr(pid, err)
	}
	defer file.Close()
	if err := eachLine(file, mostMaps, do); err != nil {
		return GoneOr(pid, fmt.Errorf("%s of process %d: %w", name, pid, err))
	}
	return nil
}

func eachLine(r io.Reader, most int64, do func(line string) error) error {
	limited := &io.LimitedReader{R: r, N: most}
	lines := bufio.NewScanner(limited)
	for lines.Scan() {
		if err := do(lines.Text()); err != nil {
			return err
		}
	}
	if limited.N == 0 {
		return errTooMuch
	}
	return lines.Err()
}

// Mappings reads /proc/PID/maps.
func Mappings(pid int) (mappings []*procfs.ProcMap, err error) {
	err = EachMapping(pid, func(line string) error {
		m, err := parseMapping(line)
		mappings = append(mappings, m)
		return err
	})
	if err != nil {
		return nil, err
	}
	return mappings, nil
}

// SplitMapping splits a line of /proc/PID/maps: START-END PERMISSIONS OFFSET DEVICE INODE NAME. A name may be missing,
// and may have blanks.
func SplitMapping(line string) (r Range, fields []string, name string, err error) {
	fields = strings.SplitN(line, " ", 6)
	if len(fields) < 5 {
		return r, nil, "", fmt.Errorf("%q is no mapping", line)
	}
	if len(fields) == 6 {
		name = strings.TrimLeft(fields[5], " ")
	}
	start, end, _ := strings.Cut(fields[0], "-")
	var startErr, endErr error
	r.Start, startErr = strconv.ParseUint(start, 16, 64)
	r.End, endErr = strconv.ParseUint(end, 16, 64)
	if err = errors.Join(startErr, endErr); err == nil && r.Start > r.End {
		err = errors.New("it ends before it begins")
	}
	if err != nil {
		err = fmt.Errorf("%q: %w", line, err)
	}
	return r, fields, name, err
}

func parseMapping(line string) (*procfs.ProcMap, error) {
	r, fields, name, err := SplitMapping(line)
	if err != nil {
		return nil, err
	}
	permissions := fields[1]
	if len(permissions) != 4 {
		return nil, fmt.Errorf("%q has unknown permissions", line)
	}
	offset, offsetErr := strconv.ParseInt(fields[2], 16, 64)
	device, inode, inodeErr := MappedInode(fields)
	if err := errors.Join(offsetErr, inodeErr); err != nil {
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	has := func(c byte) bool { return slices.Contains([]byte(permissions), c) }
	return &procfs.ProcMap{
		StartAddr: uintptr(r.Start), EndAddr: uintptr(r.End), Offset: offset, Inode: inode, Pathname: name,
		Dev:   device,
		Perms: &procfs.ProcMapPermissions{Read: has('r'), Write: has('w'), Execute: has('x'), Shared: has('s'), Private: has('p')},
	}, nil
}

// MappedInode returns the device and the inode of a mapping, given by the fields of its line: see [SplitMapping]. They
// are 0 if no file is mapped.
func MappedInode(fields []string) (device, inode uint64, err error) {
	if len(fields) < 5 {
		return 0, 0, errors.New("no mapping")
	}
	majorText, minorText, _ := strings.Cut(fields[3], ":")
	major, majorErr := strconv.ParseUint(majorText, 16, 32)
	minor, minorErr := strconv.ParseUint(minorText, 16, 32)
	inode, inodeErr := strconv.ParseUint(fields[4], 10, 64)
	return unix.Mkdev(uint32(major), uint32(minor)), inode, errors.Join(majorErr, minorErr, inodeErr)
}
