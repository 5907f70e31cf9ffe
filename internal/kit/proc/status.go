package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// Status holds those fields of /proc/PID/status that a dump or a restore needs.
type Status struct {
	Name      string // made printable: a process may give itself any name
	TGID      int    // the pid of the process; another one than asked for if that was a thread's
	PPID      int
	TracerPID int
	Seccomp   bool // it is under a seccomp filter or in strict mode
	Ended     bool // it is a zombie, or dead
	Caught    SignalSet
	Ignored   SignalSet
	Blocked   SignalSet // by this thread; for a process, by its first thread
	Pending   SignalSet // for this thread or the whole process
	// NSPID lists the pids of the process in its pid namespaces, from the one of the reader
	// inwards. The last is the pid in the CRIU image.
	NSPID []int
	CPUs  string // on which it may run, such as 0-3,8
	// UIDs and GIDs are the real, effective, saved and file system ids.
	UIDs, GIDs []int
	// Anonymous is all anonymous memory, swapped out or not, and Shared the shared memory that it
	// uses, which several processes may have in common: a dump writes these. Locked is what is
	// locked against paging. All are in bytes.
	Anonymous, Shared, Locked uint64
	// StoreBypass and IndirectBranch say what a thread may speculate about, in words of the kernel (PR_SET_SPECULATION_CTRL).
	StoreBypass, IndirectBranch string
}

// SignalSet is a set of signals as /proc shows it, such as the signals with a handler.
type SignalSet uint64

func parseSignals(text string) (SignalSet, error) {
	set, err := strconv.ParseUint(text, 16, 64)
	return SignalSet(set), err
}

// Has reports whether a signal is in the set.
func (s SignalSet) Has(signal unix.Signal) bool { return s&(1<<(signal-1)) != 0 }

// ImagePID returns the pid by which a CRIU image names the process: its pid in the
// innermost namespace.
func (s Status) ImagePID() int { return s.NSPID[len(s.NSPID)-1] }

// Printable replaces every character that is not printable by a question mark.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// ReadStatus reads the status of a process, or of a thread by its tid.
func ReadStatus(pid int) (Status, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Status{}, GoneOr(pid, err)
	}
	return parseStatus(pid, data)
}

func parseNumbers(text string) (numbers []int, err error) {
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

func parseSize(text string) (uint64, error) {
	kib, err := strconv.ParseUint(strings.TrimSuffix(text, " kB"), 10, 54)
	return kib << 10, err
}

func parseStatus(pid int, data []byte) (Status, error) {
	var s Status
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "Name":
			s.Name = Printable(value)
		case "State":
			s.Ended = strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X")
		case "Tgid":
			s.TGID, err = strconv.Atoi(value)
		case "PPid":
			s.PPID, err = strconv.Atoi(value)
		case "TracerPid":
			s.TracerPID, err = strconv.Atoi(value)
		case "SigCgt":
			s.Caught, err = parseSignals(value)
		case "SigIgn":
			s.Ignored, err = parseSignals(value)
		case "SigBlk":
			s.Blocked, err = parseSignals(value)
		case "SigPnd", "ShdPnd":
			var pending SignalSet
			pending, err = parseSignals(value)
			s.Pending |= pending
		case "Seccomp":
			s.Seccomp = value != "0"
		case "NSpid":
			s.NSPID, err = parseNumbers(value)
		case "Cpus_allowed_list":
			s.CPUs = value
		case "Uid":
			s.UIDs, err = parseNumbers(value)
		case "Gid":
			s.GIDs, err = parseNumbers(value)
		case "Speculation_Store_Bypass":
			s.StoreBypass = value
		case "SpeculationIndirectBranch":
			s.IndirectBranch = value
		case "RssAnon", "VmSwap":
			var size uint64
			size, err = parseSize(value)
			s.Anonymous += size
		case "RssShmem":
			s.Shared, err = parseSize(value)
		case "VmLck":
			s.Locked, err = parseSize(value)
		}
		if err != nil {
			return Status{}, fmt.Errorf("status of process %d: %s: %w", pid, key, err)
		}
	}
	if len(s.NSPID) == 0 {
		return Status{}, fmt.Errorf("status of process %d has no NSpid line: the kernel is too old (4.1 has it)", pid)
	}
	return s, nil
}
