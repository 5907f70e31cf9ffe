package cudackpt

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cucriu/internal/kit/fault"
)

// GPU is one GPU of this host, as /proc/driver/nvidia describes it.
type GPU struct {
	UUID     UUID   `json:"uuid"`
	Model    string `json:"model"`        // "NVIDIA H200"
	PCIBusID string `json:"pci"`          // "0000:41:00.0", lower case
	Minor    int    `json:"device_minor"` // its device node is /dev/nvidia<Minor>
}

// HostGPUs returns the GPUs that the kernel's driver has on this host, in the order of their
// PCI bus ids.
//
// It is assumed that a restore without pairs assigns GPUs in the same order. NVML and
// CUDA_DEVICE_ORDER=PCI_BUS_ID use it. CUDA's default order is the same on hosts whose GPUs are
// all of one type, and a process can move only between GPUs of one type.
//
// A GPU that is not initialized has no UUID, and no process can be moved to it. HostGPUs leaves
// it out, unless there is no other.
func (d *Driver) HostGPUs() ([]GPU, error) {
	all, err := listHostGPUs(d.root)
	if err != nil {
		return nil, err
	}
	gpus := slices.DeleteFunc(slices.Clone(all), GPU.uninitialized)
	if len(gpus) == 0 && len(all) > 0 {
		return nil, newUninitializedError(all[0])
	}
	return gpus, nil
}

func (g GPU) uninitialized() bool { return g.UUID == UUID{} }

// UninitializedError says that a GPU has no UUID, because it is not initialized.
type UninitializedError struct {
	explained
	PCIBusID string
}

func newUninitializedError(gpu GPU) error {
	return &UninitializedError{
		*fault.New("the GPU at "+gpu.PCIBusID+" has no UUID because it is not initialized", "enable persistence mode (nvidia-smi -pm 1, or nvidia-persistenced)"),
		gpu.PCIBusID,
	}
}

// VisibleGPUs returns the GPUs that a process can see: those that have a device node
// /dev/nvidiaN in its mount namespace, in the order of [Driver.HostGPUs]. The driver captures
// this set at a checkpoint, whether the GPUs are used or not; CUDA_VISIBLE_DEVICES does not
// matter. The process may be stopped, and need not use CUDA. Reading another user's namespace
// takes CAP_SYS_PTRACE. If a GPU that the process can see is not initialized, the error is an
// [*UninitializedError]; other GPUs do not matter.
func (d *Driver) VisibleGPUs(pid int) ([]GPU, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("%w: %d is not a process ID", ErrInvalidArgument, pid)
	}
	host, err := listHostGPUs(d.root)
	if err != nil {
		return nil, err
	}
	minors, err := visibleMinors(filepath.Join("/proc", strconv.Itoa(pid), "root"), d.root)
	if err != nil {
		return nil, fmt.Errorf("device nodes that process %d can see: %w", pid, err)
	}
	// A node without a GPU behind it shows the process nothing. Container engines make nodes in
	// advance, and GPUs fall off the bus.
	visible := slices.DeleteFunc(host, func(g GPU) bool { return !minors[g.Minor] })
	if i := slices.IndexFunc(visible, GPU.uninitialized); i >= 0 {
		return nil, fmt.Errorf("process %d can see a GPU that it cannot use: %w", pid, newUninitializedError(visible[i]))
	}
	return visible, nil
}

// OwnGPUs returns the GPUs of this host that this program can see. In a container, or in a job's
// place, NVML and CUDA know only these. Where it sees the device node of none (they are made when
// the first program needs them), it returns all.
func (d *Driver) OwnGPUs() ([]GPU, error) {
	host, err := d.HostGPUs()
	if err != nil {
		return nil, err
	}
	minors, err := visibleMinors("/", d.root)
	if err != nil || len(minors) == 0 {
		return host, nil
	}
	own := slices.DeleteFunc(slices.Clone(host), func(g GPU) bool { return !minors[g.Minor] })
	if len(own) == 0 {
		return host, nil
	}
	return own, nil
}

func listHostGPUs(root string) ([]GPU, error) {
	dir := filepath.Join(root, "proc/driver/nvidia/gpus")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, notLoaded(root, err)
	}
	gpus := make([]GPU, 0, len(entries))
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name(), "information")
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		gpu, err := parseInformation(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		gpus = append(gpus, gpu)
	}
	slices.SortFunc(gpus, func(a, b GPU) int {
		// A PCI domain of more than 16 bits has more digits, and sorts last.
		return cmp.Or(cmp.Compare(len(a.PCIBusID), len(b.PCIBusID)), cmp.Compare(a.PCIBusID, b.PCIBusID))
	})
	return gpus, nil
}

// notLoaded explains why the driver's part of /proc below root cannot be read.
func notLoaded(root string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	remedy := "load it (modprobe nvidia)"
	if root != "/" {
		remedy += ", or correct driver.root in the configuration (CUCRIU_DRIVER_ROOT), which is " + root
	}
	return fault.Because(err, "the NVIDIA kernel driver is not loaded: "+err.Error(), remedy)
}

// parseInformation reads /proc/driver/nvidia/gpus/*/information: lines of "Name:", blanks,
// value.
func parseInformation(text []byte) (GPU, error) {
	fields := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	gpu := GPU{Model: fields["Model"], PCIBusID: strings.ToLower(fields["Bus Location"])}
	var err error
	// The UUID of a GPU that is not initialized consists of question marks.
	if uuid := fields["GPU UUID"]; !strings.Contains(uuid, "?") {
		if gpu.UUID, err = ParseUUID(uuid); err != nil {
			return GPU{}, fmt.Errorf("GPU UUID: %w", err)
		}
	}
	if gpu.PCIBusID == "" {
		return GPU{}, errors.New("no Bus Location")
	}
	if gpu.Minor, err = strconv.Atoi(fields["Device Minor"]); err != nil || gpu.Minor < 0 {
		return GPU{}, fmt.Errorf("%q is not a valid Device Minor", fields["Device Minor"])
	}
	return gpu, nil
}

// DriverVersion returns the version of the kernel's driver, "580.159.04".
func (d *Driver) DriverVersion() (string, error) {
	path := filepath.Join(d.root, "proc/driver/nvidia/version")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", notLoaded(d.root, err)
	}
	version, err := parseDriverVersion(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return version, nil
}

// parseDriverVersion finds the version in the line that begins with "NVRM version:". The words
// before the version differ between the proprietary and the open kernel module. The version is
// the first word of numbers and dots.
func parseDriverVersion(text []byte) (string, error) {
	isVersion := regexp.MustCompile(`^[0-9]+(\.[0-9]+)+$`)
	for line := range bytes.Lines(text) {
		rest, ok := strings.CutPrefix(string(line), "NVRM version:")
		if !ok {
			continue
		}
		for _, word := range strings.Fields(rest) {
			if isVersion.MatchString(word) {
				return word, nil
			}
		}
	}
	return "", errors.New("it has no NVRM version line")
}
