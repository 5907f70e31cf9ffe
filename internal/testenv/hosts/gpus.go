package hosts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// gpus returns how many GPUs the machine must have, or a simulated host gets.
func (o HostOptions) gpus() int {
	if testenv.RealDriver() && len(o.Real) > 0 {
		return slices.Max(o.Real) + 1
	}
	return max(o.GPUs, 1)
}

// hidden lists what is not on the host, with the GPUs that are not.
func (o HostOptions) hidden(t *testing.T) []string {
	t.Helper()
	hide := slices.Clone(o.Hide)
	if !testenv.RealDriver() || o.Real == nil {
		return hide
	}
	for _, gpu := range realGPUs(t, "/") {
		if !slices.Contains(o.Real, gpu.minor) {
			hide = append(hide, "/dev/nvidia"+strconv.Itoa(gpu.minor), gpu.dir)
		}
	}
	return hide
}

type realGPU struct {
	dir   string // in /proc, on the host
	minor int
	uuid  string
}

var (
	gpuMinor = regexp.MustCompile(`(?m)^Device Minor:\s*(\d+)`)
	gpuUUID  = regexp.MustCompile(`(?m)^GPU UUID:\s*(\S+)`)
)

// realGPUs lists what the real driver tells of the GPUs.
func realGPUs(t *testing.T, root string) []realGPU {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		t.Fatal(err)
	}
	var gpus []realGPU
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		minor, uuid := gpuMinor.FindSubmatch(text), gpuUUID.FindSubmatch(text)
		if minor == nil || uuid == nil {
			t.Fatalf("%s has no minor or no UUID:\n%s", file, text)
		}
		n, _ := strconv.Atoi(string(minor[1]))
		gpus = append(gpus, realGPU{"/" + strings.TrimPrefix(filepath.Dir(file), strings.TrimSuffix(root, "/")+"/"), n, string(uuid[1])})
	}
	return gpus
}

// UUIDs lists the GPUs that the host has, in the driver's order.
func (h *Host) UUIDs() []string {
	if !testenv.RealDriver() {
		return h.Host.UUIDs()
	}
	var uuids []string
	for _, gpu := range realGPUs(h.pair.t, h.Path("/")) {
		uuids = append(uuids, gpu.uuid)
	}
	return uuids
}
