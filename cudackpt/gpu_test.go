package cudackpt

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The fixtures' directories have hyphens where the kernel has colons, because file names in a
// Go module may not contain colons. The reader takes the bus id from the content.
func fixtureGPUs(t *testing.T) (first, second GPU) {
	return GPU{mustUUID(t, "GPU-5a3c0000-0000-4000-8000-000000000001"), "NVIDIA H200", "0000:41:00.0", 1},
		GPU{mustUUID(t, "GPU-77b10000-0000-4000-8000-000000000002"), "NVIDIA H200", "0000:c1:00.0", 0}
}

func TestHostGPUsAreInPCIOrder(t *testing.T) {
	first, second := fixtureGPUs(t)
	got, err := (&Driver{root: "testdata/host"}).HostGPUs()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]GPU{first, second}, got); diff != "" {
		t.Error(diff)
	}
}

func TestDriverVersionOfBothKernelModules(t *testing.T) {
	for root, want := range map[string]string{"testdata/host": "580.159.04", "testdata/asleep": "550.54.15"} {
		if got, err := (&Driver{root: root}).DriverVersion(); err != nil || got != want {
			t.Errorf("driver version in %s is %q, %v, want %q", root, got, err, want)
		}
	}
}

func TestUninitializedGPUIsNamedWithItsRemedy(t *testing.T) {
	_, err := (&Driver{root: "testdata/asleep"}).HostGPUs()
	if err == nil || !strings.Contains(err.Error(), "0000:41:00.0") || !strings.Contains(err.Error(), "nvidia-smi -pm 1") {
		t.Errorf("error is %v", err)
	}
}

func TestMissingKernelDriverIsNamedWithItsRemedy(t *testing.T) {
	d := &Driver{root: "testdata/nowhere"}
	_, gpusErr := d.HostGPUs()
	_, versionErr := d.DriverVersion()
	_, visibleErr := d.VisibleGPUs(os.Getpid())
	for _, err := range []error{gpusErr, versionErr, visibleErr} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "kernel driver is not loaded") {
			t.Errorf("error is %v", err)
		}
	}
}

func TestDamagedInformationIsRefused(t *testing.T) {
	const whole = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-5a3c0000-0000-4000-8000-000000000001\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 1\n"
	if _, err := parseInformation([]byte(whole)); err != nil {
		t.Fatal(err)
	}
	for old, says := range map[string]string{
		"GPU UUID":   "GPU UUID",
		"GPU-5a":     "GPU UUID",
		"Bus Loc":    "Bus Location",
		"Device Min": "Device Minor",
		"\t 1\n":     "Device Minor",
	} {
		t.Run("without "+old, func(t *testing.T) {
			if _, err := parseInformation([]byte(strings.Replace(whole, old, "x", 1))); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("without %q the error is %v, want one that says %q", old, err, says)
			}
		})
	}
}

func FuzzParseProcDriver(f *testing.F) {
	f.Add([]byte("GPU UUID: GPU-5a3c0000-0000-4000-8000-000000000001\nBus Location: 0\nDevice Minor: 1"))
	f.Add([]byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if gpu, err := parseInformation(text); err == nil && (gpu.PCIBusID == "" || gpu.Minor < 0) {
			t.Errorf("accepted %+v", gpu)
		}
		if version, err := parseDriverVersion(text); err == nil && !strings.Contains(version, ".") {
			t.Errorf("accepted version %q", version)
		}
	})
}

// The tree of a process is as /proc/PID/root shows it. Nodes count by their device number, and
// links are followed inside the tree.
func TestVisibleMinorsAreThoseOfTheDeviceNodes(t *testing.T) {
	tree := t.TempDir()
	dev := filepath.Join(tree, "sim", "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	node := func(name string, mode uint32, major, minor uint32) {
		t.Helper()
		if err := unix.Mknod(filepath.Join(dev, name), mode|0o666, int(unix.Mkdev(major, minor))); err != nil {
			t.Fatalf("mknod %s: %v: these tests make device nodes, run them as root", name, err)
		}
	}
	node("nvidia0", unix.S_IFCHR, 195, 0)
	node("nvidia3", unix.S_IFCHR, 195, 5) // another GPU under this name
	node("nvidia7", unix.S_IFBLK, 195, 7) // a block device
	node("nvidia8", unix.S_IFCHR, 1, 3)   // /dev/null
	node("nvidiactl", unix.S_IFCHR, 195, 255)
	node("nvidia255", unix.S_IFCHR, 195, 255) // the control device by another name
	node("kept", unix.S_IFCHR, 195, 9)
	if err := os.WriteFile(filepath.Join(dev, "nvidia6"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{
		"nvidia9":  "/sim/dev/kept",            // absolute, and resolved inside the tree
		"nvidia10": "/sim/dev/nothing",         // leads nowhere
		"nvidia11": filepath.Join(dev, "kept"), // exists in our tree, not in that one
	} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := visibleMinors(tree, "/sim")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]bool{0: true, 5: true, 9: true}, got); diff != "" {
		t.Error(diff)
	}
	open := openDescriptors(t)
	if _, err := visibleMinors(tree, "/sim"); err != nil {
		t.Fatal(err)
	}
	if leaked := openDescriptors(t) - open; leaked != 0 {
		t.Errorf("%d descriptors are left open", leaked)
	}
	if got, err := visibleMinors(tree, "/"); err != nil || len(got) != 0 {
		t.Errorf("in a tree without /dev: %v, %v", got, err)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestVisibleGPUsOfADeadProcessIsAnError(t *testing.T) {
	root, err := filepath.Abs("testdata/host")
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&Driver{root: root}).VisibleGPUs(1<<22 + 1) // above the highest possible pid
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "process 4194305") {
		t.Errorf("error is %v", err)
	}
}

func TestUnknownMemoryIsNotAnAmount(t *testing.T) {
	list := []nvmlProcessInfo{{pid: 1, usedGPUMemory: 5}, {pid: 2, usedGPUMemory: UnknownMemory}, {pid: 2, usedGPUMemory: 5}, {pid: 1, usedGPUMemory: 7}}
	for _, row := range []struct {
		pid  int
		want uint64
		ok   bool
	}{{1, 12, true}, {2, UnknownMemory, true}, {3, 0, false}} {
		t.Run(strconv.Itoa(row.pid), func(t *testing.T) {
			if got, ok := sumFor(list, row.pid); got != row.want || ok != row.ok {
				t.Errorf("process %d holds %d, %v, want %d, %v", row.pid, got, ok, row.want, row.ok)
			}
		})
	}
}
