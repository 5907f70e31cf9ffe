package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
)

// host is where a job runs: this machine with its GPUs, or a simulated one.
type host struct {
	gpus int
	env  []string
	undo func() error
}

// maxSimulatedGPUs is the largest number of GPUs of a simulated host. Up to it, there are
// as many as the job has processes.
const maxSimulatedGPUs = 4

// newHost returns this machine, or makes a simulated host for a load in a folder.
func (o options) newHost(ctx context.Context, dir string, l load) (*host, error) {
	if o.real {
		_, gpus, err := realGPUs()
		return &host{gpus: len(gpus), env: os.Environ(), undo: func() error { return nil }}, err
	}
	h := &host{gpus: min(l.processes, maxSimulatedGPUs), undo: func() error { return nil }}
	if o.namespaces() {
		// The simulated GPU memory goes to a tmpfs, so that it keeps no disk busy.
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size=100%"); err != nil {
			return nil, fmt.Errorf("memory for the simulated GPUs: mount a tmpfs on %s: %w", dir, err)
		}
		h.undo = func() error { return unix.Unmount(dir, unix.MNT_DETACH) }
	}
	each := int64(l.onGPU(0, h.gpus)) * (l.each + 64*mib)
	out, err := exec.CommandContext(ctx, o.artefact("build", "cudasim", "cudasim-run"), "--root", filepath.Join(dir, "host"),
		"--gpus", strconv.Itoa(h.gpus), "--mib-per-gpu", strconv.FormatInt(each/mib, 10), "--", "/usr/bin/env", "-0").Output()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a simulated host: %w", err), h.undo())
	}
	h.env = strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	return h, nil
}

// realGPUs returns this machine's driver and GPUs.
func realGPUs() (*cudackpt.Driver, []cudackpt.GPU, error) {
	driver, err := cudackpt.Open()
	if err != nil {
		return nil, nil, err
	}
	gpus, err := driver.HostGPUs()
	if err == nil && len(gpus) == 0 {
		err = errors.New("the NVIDIA driver of this machine has no GPU")
	}
	return driver, gpus, err
}

// command returns a command that runs on the host with additional variables. It is killed
// when ctx ends.
func (h *host) command(ctx context.Context, more []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(append([]string{}, h.env...), more...)
	return cmd
}
