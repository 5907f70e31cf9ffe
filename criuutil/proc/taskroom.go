package proc

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// TaskRoom returns how many more threads the kernel and the control groups of a process allow.
func (s System) TaskRoom(pid int) (int, error) {
	room := math.MaxInt
	narrow := func(limitFile, used string) {
		limit, err := readNumber(limitFile)
		now, usedErr := strconv.Atoi(used)
		if err == nil && usedErr == nil { // else it is no limit
			room = min(room, max(0, limit-now))
		}
	}
	load, err := os.ReadFile(s.path("proc/loadavg")) // such as "0.20 0.18 0.12 1/80 11206"
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(load), "/")
	threads, _, _ := strings.Cut(after, " ")
	narrow(s.path("proc/sys/kernel/pid_max"), threads)
	narrow(s.path("proc/sys/kernel/threads-max"), threads)
	hierarchies, err := s.Hierarchies()
	if err != nil {
		return 0, err
	}
	return room, hierarchies.each(pid, "pids", func(dir string, _, _ bool) error {
		used, _ := os.ReadFile(filepath.Join(dir, "pids.current"))
		narrow(filepath.Join(dir, "pids.max"), strings.TrimSpace(string(used)))
		return nil
	})
}

func readNumber(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}
