package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/internal/proc"
)

// CheckMachine finds out whether jobs can be dumped and restored on this machine. It looks at
// the driver, criu (given by name or path), the kernel, and what this process may do. It
// changes nothing.
func (h Host) CheckMachine(ctx context.Context, criu string) (Findings, error) {
	var system proc.System
	release, err := system.KernelVersion()
	if err != nil {
		return nil, err
	}
	findings := append(h.driverFindings(), installedFindings(ctx, criu, release)...)
	capabilities, err := proc.Capabilities()
	if err != nil {
		return nil, err
	}
	findings = append(findings, capabilityFindings(capabilities)...)
	findings = append(findings, fine(FindingKernel, "Linux "+release))
	mode, err := system.HugePages()
	if err != nil {
		return nil, err
	}
	return append(findings, hugePageFindings(mode)...), nil
}

// driverFindings are about the driver and its library.
func (h Host) driverFindings() Findings {
	driver, err := h.Driver()
	if err != nil {
		return Findings{driverFinding(err)}
	}
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return Findings{driverFinding(err)}
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return Findings{found(FindingDriverMissing, err, "load the kernel module: modprobe nvidia")}
	}
	gpus, err := driver.HostGPUs()
	if err != nil {
		return Findings{found(FindingDriverMissing, err, "load the kernel module: modprobe nvidia")}
	}
	findings := Findings{fine(FindingDriver, fmt.Sprintf("NVIDIA driver %s, CUDA %v, %d GPUs", version, driver.CUDAVersion(), len(gpus)))}
	if err := driver.Supports(cudackpt.FeatureGPUPairs); err != nil {
		old := found(FindingDriverOld, err, "")
		old.Severity = SeverityWarning // it can still restore onto the same GPUs
		findings = append(findings, old)
	}
	return findings
}

// installedFindings are about the criu that the given name starts.
func installedFindings(ctx context.Context, name, release string) Findings {
	criu, err := criuutil.FindCriu(ctx, name, os.Getenv)
	if err != nil {
		return Findings{found(FindingCriuMissing, err, "install CRIU 4.2 or newer, or name its path with --criu")}
	}
	findings := Findings{fine(FindingCriu, "CRIU "+criu.Version+" at "+criu.Path)}
	findings = append(findings, criuVersionFindings(criu.Version, release)...)
	if err := criuutil.CheckKernel(ctx, criu.Path); err != nil {
		findings = append(findings, refuse(FindingCriuCheck, "criu check fails: "+err.Error(),
			"run it as root and see criu check -v4: a newer kernel or a newer CRIU may be needed"))
	}
	return append(findings, pluginFindings(criu.LibDir, criu.LibDirGiven, os.Getenv("PATH"))...)
}

// CriuFindings are about the criu that runs this hook.
func CriuFindings(ctx context.Context, criu *criuutil.Criu) Findings {
	var findings Findings
	release, err := proc.System{}.KernelVersion()
	if err == nil {
		var version string
		if version, err = criuutil.CriuVersion(ctx, criu.Executable()); err == nil {
			findings = criuVersionFindings(version, release)
		}
	}
	if err != nil {
		findings = append(findings, warn(FindingCriuVersion, "the version of this criu cannot be told: "+err.Error(), "use CRIU 4.2 or newer"))
	}
	// An action script inherits criu's environment.
	return append(findings, pluginFindings(criu.LibDir, criu.LibDirGiven, os.Getenv("PATH"))...)
}

// criuVersionFindings refuses a criu that is too old.
func criuVersionFindings(text, release string) Findings {
	version, err := criuutil.ParseVersion(text)
	if err != nil {
		return Findings{warn(FindingCriuVersion, "the version of CRIU cannot be read: "+err.Error(), "use CRIU 4.2 or newer")}
	}
	if version.Before(4, 0) {
		return Findings{refuse(FindingCriuVersion, "CRIU "+text+" is older than 4.0", "install CRIU 4.2 or newer")}
	}
	kernel, err := criuutil.ParseVersion(release)
	if err == nil && version.Before(4, 2) && !kernel.Before(6, 16) {
		return Findings{warn(FindingCriuVersion, fmt.Sprintf("CRIU %s cannot dump TCP sockets on kernel 6.16 and newer, this is %s", text, release),
			"install CRIU 4.2 or newer")}
	}
	return nil
}

const (
	cudaPlugin     = "cuda_plugin.so"
	cudaCheckpoint = "cuda-checkpoint"
)

// pluginFindings refuses a criu that would load its own CUDA plugin from libdir. When criu
// begins, the plugin asks every CUDA process for its state, and for a process that we have
// stopped it waits for ever. At restore it works without a GPU map. The plugin switches itself
// off (cuda_plugin.c of criu 4.2) if there is no cuda-checkpoint in criu's PATH. Then the
// finding is a warning, because somebody may install cuda-checkpoint later.
func pluginFindings(libdir string, given bool, path string) Findings {
	if libdir == "" {
		return nil
	}
	remedy := "point criu's libdir at an empty folder that exists, in criu's configuration file or with --libdir"
	if _, err := os.Stat(libdir); given && errors.Is(err, os.ErrNotExist) {
		return Findings{refuse(FindingPluginDir, "criu's libdir "+libdir+" does not exist, and criu fails without it", "mkdir -p "+libdir)}
	}
	plugin := filepath.Join(libdir, cudaPlugin)
	if _, err := os.Stat(plugin); err != nil {
		return nil
	}
	for _, dir := range filepath.SplitList(path) {
		if tool, err := exec.LookPath(filepath.Join(dir, cudaCheckpoint)); err == nil {
			return Findings{refuse(FindingCUDAPlugin, fmt.Sprintf("criu would load its own CUDA plugin, %s, which works with %s on the same processes", plugin, tool),
				remedy)}
		}
	}
	return Findings{warn(FindingCUDAPlugin, fmt.Sprintf("criu would load its own CUDA plugin, %s, which does nothing only as long as there is no cuda-checkpoint in criu's PATH", plugin),
		remedy)}
}

// capabilityFindings are about the effective capabilities. Root in a container may lack some.
func capabilityFindings(effective uint64) Findings {
	var missing, missingForTCP []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_KILL, "CAP_KILL"}, {unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		missingForTCP = []string{"CAP_NET_ADMIN"}
	}
	switch {
	case len(missing) > 0:
		return Findings{refuse(FindingCapabilities, "lacks "+strings.Join(append(missing, missingForTCP...), ", "), "run as root, with these capabilities")}
	case len(missingForTCP) > 0:
		return Findings{warn(FindingCapabilities, "lacks CAP_NET_ADMIN, which criu needs for processes that have TCP connections", "run with it")}
	}
	return Findings{fine(FindingCapabilities, "has all capabilities that are needed")}
}

// hugePageFindings gives a tip: the first touch of fresh memory takes a large part of the time
// of checkpoint and restore. The fast lane asks for huge pages (madvise) where it needs them.
func hugePageFindings(mode string) Findings {
	switch mode {
	case "always", "madvise":
		return Findings{fine(FindingTHP, "transparent huge pages: "+mode)}
	case "":
		mode = "not there"
	}
	return Findings{warn(FindingTHP, "transparent huge pages: "+mode+"; a checkpoint fills fresh memory, and with 4 KiB pages dump and restore take half as long again",
		"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")}
}
