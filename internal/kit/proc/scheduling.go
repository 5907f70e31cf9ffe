package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Scheduling is what a thread was given that criu does not restore.
type Scheduling struct {
	TID        int          `json:"tid"`                      // in its innermost pid namespace
	CPUs       *unix.CPUSet `json:"cpus,omitempty"`           // on which it may run; nil if not bound
	IOPriority int          `json:"io_priority,omitempty"`    // as ioprio_set(2) takes it
	SlackNanos int          `json:"timer_slack_ns,omitempty"` // of its timers
}

const (
	ioPriorityOfThread = 1 // IOPRIO_WHO_PROCESS
	ioPriorityClass    = 13
	usualSlackNanos    = 50_000
)

func slackFile(tid int) string { return fmt.Sprintf("/proc/%d/timerslack_ns", tid) }

// ReadScheduling lists the threads of a process that were given something else than a new process
// in its control group has.
func (h *Hierarchies) ReadScheduling(pid int) ([]Scheduling, error) {
	allowed, err := h.allowedCPUs(pid)
	if err != nil {
		return nil, err
	}
	tids, err := Threads(pid)
	if err != nil {
		return nil, err
	}
	var found []Scheduling
	var unbound unix.CPUSet // the same as allowed, once it is known
	for _, tid := range tids {
		var s Scheduling
		var cpus unix.CPUSet
		bound := unix.SchedGetaffinity(tid, &cpus) == nil && cpus != unbound // it fails if there are more CPUs than fit
		if priority, _, errno := unix.Syscall(unix.SYS_IOPRIO_GET, ioPriorityOfThread, uintptr(tid), 0); errno == 0 && priority>>ioPriorityClass != 0 {
			s.IOPriority = int(priority)
		}
		text, _ := os.ReadFile(slackFile(tid))
		if slack, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && slack != usualSlackNanos {
			s.SlackNanos = slack
		}
		if !bound && s == (Scheduling{}) {
			continue
		}
		status, err := ReadStatus(tid)
		if err != nil {
			continue // it has ended
		}
		s.TID = status.ImagePID()
		if bound && status.CPUs != allowed {
			s.CPUs = &cpus
		} else if bound {
			unbound = cpus
		}
		if s != (Scheduling{TID: s.TID}) {
			found = append(found, s)
		}
	}
	return found, nil
}

// allowedCPUs lists those that the control group of a process allows, such as 0-3,8.
func (h *Hierarchies) allowedCPUs(pid int) (string, error) {
	list, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return "", err
	}
	found := false
	err = h.each(pid, "cpuset", func(dir string, v1, _ bool) error {
		name := "cpuset.cpus.effective"
		if v1 {
			name = "cpuset.effective_cpus"
		}
		if of, err := os.ReadFile(filepath.Join(dir, name)); err == nil && !found {
			list, found = of, true
		}
		return nil
	})
	return strings.TrimSpace(string(list)), err
}

// Apply gives a thread what it had, as far as it can be had here. It may run only on CPUs on
// which it may run now.
func (s Scheduling) Apply(tid int) error {
	var errs []error
	if s.CPUs != nil {
		errs = append(errs, s.bind(tid))
	}
	if s.IOPriority != 0 {
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioPriorityOfThread, uintptr(tid), uintptr(s.IOPriority)); errno != 0 {
			errs = append(errs, fmt.Errorf("its I/O priority could not be set: %w", errno))
		}
	}
	if s.SlackNanos != 0 {
		if err := os.WriteFile(slackFile(tid), []byte(strconv.Itoa(s.SlackNanos)), 0); err != nil {
			errs = append(errs, fmt.Errorf("its timer slack could not be set: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (s Scheduling) bind(tid int) error {
	var may, gets unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &may); err != nil {
		return err
	}
	for i := range may {
		gets[i] = s.CPUs[i] & may[i]
	}
	if gets.Count() == 0 {
		return fmt.Errorf("it was bound to %d CPUs, but may run on none of them here: it is not bound", s.CPUs.Count())
	}
	err := unix.SchedSetaffinity(tid, &gets)
	if err == nil && gets != *s.CPUs {
		err = fmt.Errorf("it was bound to %d CPUs, but may run on %d of them here: it is bound to these", s.CPUs.Count(), gets.Count())
	}
	return err
}
