package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/internal/kit/proc"
)

// machine describes where the measurements were made, as names and values.
type machine [][2]string

func (m machine) String() string {
	var text strings.Builder
	for _, line := range m {
		fmt.Fprintf(&text, "%-10s %s\n", line[0], line[1])
	}
	return text.String()
}

// report holds everything that the results files show.
type report struct {
	machine machine
	room    room
	skipped []string
	results Results
}

// newReport describes this machine and how much room it has.
func (o options) newReport(ctx context.Context) (*report, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var system proc.System
	kernel, err := system.KernelVersion()
	if err != nil {
		return nil, err
	}
	pages, err := system.HugePages()
	if err != nil {
		return nil, err
	}
	criu, err := criuutil.CriuVersion(ctx, o.criu)
	if err != nil {
		return nil, err
	}
	r := &report{room: room{simulated: !o.real}}
	if r.room.memory, err = availableMemory(system); err != nil {
		return nil, err
	}
	fileSystem, err := r.room.readDisk(o.dir)
	if err != nil {
		return nil, err
	}
	driver := "simulated (test/cudasim)"
	if o.real {
		if driver, err = r.room.readGPUs(ctx); err != nil {
			return nil, err
		}
	}
	r.machine = machine{
		{"date", time.Now().UTC().Format("2006-01-02 15:04 UTC")},
		{"kernel", kernel + " " + runtime.GOARCH},
		{"cores", fmt.Sprint(runtime.NumCPU())},
		{"memory", spaced(r.room.memory/mib*mib) + " available; huge pages: " + pages},
		{"driver", driver},
		{"criu", criu},
		{"images on", fileSystem},
	}
	if o.config != "" {
		r.machine = append(r.machine, [2]string{"fast lane", o.config})
	}
	return r, nil
}

// availableMemory returns how much memory this host has left, and no more than the control
// groups of this process allow.
func availableMemory(system proc.System) (int64, error) {
	available, err := system.AvailableMemory()
	if err != nil {
		return 0, err
	}
	groups, err := system.MemoryGroups(os.Getpid())
	if err != nil {
		return 0, err
	}
	for _, group := range groups {
		available = min(available, group.Room())
	}
	return int64(available), nil
}

// readDisk records how much is free where the images go, and returns the name of the file
// system.
func (r *room) readDisk(dir string) (string, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	r.disk = int64(stat.Bavail) * stat.Bsize
	r.diskIsRAM = stat.Type == unix.TMPFS_MAGIC
	mounts, err := procfs.GetMounts()
	if err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	var on *procfs.MountInfo
	for _, mount := range mounts {
		below := dir == mount.MountPoint || strings.HasPrefix(dir, strings.TrimSuffix(mount.MountPoint, "/")+"/")
		// If several are mounted on one place, only the last one is visible.
		if below && (on == nil || len(mount.MountPoint) >= len(on.MountPoint)) {
			on = mount
		}
	}
	if on == nil {
		return "", fmt.Errorf("%s is on no file system that /proc/self/mountinfo shows", dir)
	}
	return fmt.Sprintf("%s, %s free", on.FSType, spaced(r.disk/mib*mib)), nil
}

// readGPUs records how much is free on this machine's GPUs, and returns their names.
func (r *room) readGPUs(ctx context.Context) (string, error) {
	driver, gpus, err := realGPUs()
	if err != nil {
		return "", err
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return "", err
	}
	for _, gpu := range gpus {
		memory, err := driver.Memory(ctx, gpu.UUID)
		if err != nil {
			return "", err
		}
		r.gpuMemory = append(r.gpuMemory, int64(memory.Free))
	}
	return fmt.Sprintf("NVIDIA %s, %d × %s", version, len(gpus), gpus[0].Model), nil
}
