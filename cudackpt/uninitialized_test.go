package cudackpt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A GPU that is not initialized is no reason to refuse anything, unless the process can see it.
func TestAGPUWithoutUUIDMattersOnlyToWhoCanSeeIt(t *testing.T) {
	root := t.TempDir()
	information := func(minor int, uuid string) {
		t.Helper()
		dir := filepath.Join(root, fmt.Sprintf("proc/driver/nvidia/gpus/0000:4%d:00.0", minor))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("Model: \t NVIDIA H200\nGPU UUID: \t %s\nBus Location: \t 0000:4%d:00.0\nDevice Minor: \t %d\n", uuid, minor, minor)
		if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node := func(minor uint32) {
		t.Helper()
		if err := unix.Mknod(filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", minor)), unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor, minor))); err != nil {
			t.Fatalf("mknod: %v: these tests make device nodes, run them as root", err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	const unknown = "GPU-????????-????-????-????-????????????"
	information(0, "GPU-5a3c0000-0000-4000-8000-000000000001")
	information(1, unknown)
	node(0)
	d := &Driver{root: root}
	if gpus, err := d.HostGPUs(); err != nil || len(gpus) != 1 || gpus[0].Minor != 0 {
		t.Errorf("the host has %+v (%v), want GPU 0 alone", gpus, err)
	}
	if gpus, err := d.VisibleGPUs(os.Getpid()); err != nil || len(gpus) != 1 || gpus[0].Minor != 0 {
		t.Errorf("visible are %+v (%v), want GPU 0 alone", gpus, err)
	}
	node(1)
	var uninitialized *UninitializedError
	if gpus, err := d.VisibleGPUs(os.Getpid()); !errors.As(err, &uninitialized) || uninitialized.PCIBusID != "0000:41:00.0" {
		t.Errorf("visible are %+v (%v), want an error about the GPU without UUID", gpus, err)
	}
	information(0, unknown)
	if gpus, err := d.HostGPUs(); !errors.As(err, &uninitialized) || !strings.Contains(err.Error(), "persistence mode") {
		t.Errorf("the host has %+v (%v), want an error with the remedy", gpus, err)
	}
}
