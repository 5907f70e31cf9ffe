package inspect

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/units"
)

// Host is the machine that the checks are about, as the user has configured it.
type Host struct {
	// Driver opens the driver.
	Driver func() (*cudackpt.Driver, error)
	// Map and Unmapped are the user's part of the GPU map: see [gpumap.Make].
	Map      []config.Rule
	Unmapped config.Policy
	Visible  []cudackpt.GPU // by the processes of a restore; nil: those that this program sees
	// Promised returns what must be left of the GPUs' free memory for others; nil: nothing.
	Promised func() MemoryNeed
	// PromisedMemory returns what must be left of the host's memory for others; nil: nothing.
	PromisedMemory func() []HostNeed
	// Criu is the path of the criu that is to dump; empty if that is not known.
	Criu string
	// Timeout limits how long a check waits for a process to answer.
	Timeout time.Duration
}

// CheckpointDriver opens the driver, and fails if the driver cannot checkpoint.
func (h Host) CheckpointDriver() (*cudackpt.Driver, error) {
	driver, err := h.Driver()
	if err != nil {
		return nil, err
	}
	return driver, driver.Supports(cudackpt.FeatureCheckpoint)
}

// CheckMachine finds out whether jobs can be dumped and restored on this machine. It looks at
// the driver, criu (given by name or path), the kernel, and what this process may do. It
// changes nothing.
func (h Host) CheckMachine(ctx context.Context, criu string) (preflight.Findings, error) {
	var system proc.System
	release, err := system.KernelVersion()
	if err != nil {
		return nil, err
	}
	capabilities, err := proc.Capabilities()
	if err != nil {
		return nil, err
	}
	mode, err := system.HugePages()
	if err != nil {
		return nil, err
	}
	findings := append(h.driverFindings(), installedFindings(ctx, criu)...)
	at, found := len(findings), capabilityFinding(capabilities)
	if found.Severity == preflight.SeverityError {
		at = 0 // others may follow from it
	}
	return append(slices.Insert(findings, at, found), preflight.Fine(preflight.FindingKernel, "Linux "+release), hugePageFinding(mode)), nil
}

// driverFinding says why a driver cannot be used.
func driverFinding(err error) preflight.Finding {
	if errors.Is(err, cudackpt.ErrNotSupported) {
		return preflight.Found(preflight.FindingDriverOld, err)
	}
	return preflight.Found(preflight.FindingDriverMissing, err)
}

func (h Host) driverFindings() preflight.Findings {
	driver, err := h.CheckpointDriver()
	var version string
	var gpus []cudackpt.GPU
	if err == nil {
		version, err = driver.DriverVersion()
	}
	if err == nil {
		gpus, err = driver.HostGPUs()
	}
	if err != nil {
		return preflight.Findings{driverFinding(err)}
	}
	findings := preflight.Findings{preflight.Fine(preflight.FindingDriver, fmt.Sprintf("NVIDIA driver %s, CUDA %v, %s", version, driver.CUDAVersion(), units.Count(len(gpus), "GPU")))}
	if err := driver.Supports(cudackpt.FeatureGPUPairs); err != nil {
		old := preflight.Found(preflight.FindingDriverOld, err)
		old.Severity = preflight.SeverityWarning // it can still restore onto the same GPUs
		findings = append(findings, old)
	}
	return findings
}

// installedFindings are about the criu that the given name starts.
func installedFindings(ctx context.Context, name string) preflight.Findings {
	criu, err := criuutil.FindCriu(ctx, name, os.Getenv)
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return preflight.Findings{preflight.New(preflight.FindingCriuCheck, err.Error(), durable.HostRemedy(err))} // it is there
	case err != nil:
		return preflight.Findings{preflight.Found(preflight.FindingCriuMissing, err)}
	}
	findings := preflight.Findings{preflight.Fine(preflight.FindingCriu, "CRIU "+criu.Version+" at "+criu.Path)}
	findings = append(findings, CriuVersionFindings(criu.Version)...)
	if err := criuutil.CheckKernel(ctx, criu.Path); err != nil {
		findings = append(findings, preflight.New(preflight.FindingCriuCheck, "criu check fails: "+err.Error(), ""))
	}
	return append(findings, pluginFindings(criu.LibDir, criu.LibDirGiven, os.Getenv("PATH"))...)
}

// CriuFindings are about the criu that runs this hook, and what it cannot dump of a tree.
func CriuFindings(ctx context.Context, criu *criuutil.Criu, advice func() (*inventory.Tree, error)) preflight.Findings {
	version, err := criuutil.CriuVersion(ctx, criu.Executable())
	findings := CriuVersionFindings(version)
	if err != nil {
		findings = preflight.Findings{preflight.Warning(preflight.FindingCriuVersion, "the version of this criu is not known: "+err.Error(), "")}
	}
	if tree, err := advice(); err == nil { // else the inspection says so
		findings = append(findings, (&snapshot{tree}).socketFindings(version)...)
	}
	// An action script inherits criu's environment.
	return append(findings, pluginFindings(criu.LibDir, criu.LibDirGiven, os.Getenv("PATH"))...)
}

// CriuVersionFindings are about a criu of a version, as it prints it.
func CriuVersionFindings(text string) preflight.Findings {
	version, err := criuutil.ParseVersion(text)
	if err != nil {
		return preflight.Findings{preflight.Warning(preflight.FindingCriuVersion, "the version of CRIU cannot be read: "+err.Error(), "")}
	}
	if version.Before(4, 0) {
		return preflight.Findings{preflight.New(preflight.FindingCriuVersion, "CRIU "+text+" is older than 4.0", "")}
	}
	return nil
}

// socketFindings refuse the sockets of a tree of which a CRIU before 4.2 asks SO_PASSCRED, which Linux 6.16 and newer
// answer for some families only.
func (s *snapshot) socketFindings(version string) (findings preflight.Findings) {
	if criu, err := criuutil.ParseVersion(version); err != nil || !criu.Before(4, 2) {
		return nil
	}
	for _, p := range s.Processes {
		if i := slices.IndexFunc(p.Open(), hidesPassCred); i >= 0 {
			findings = append(findings, about(p, preflight.New(preflight.FindingCriuVersion,
				fmt.Sprintf("has a socket (descriptor %s) that CRIU %s cannot dump on this kernel", p.Open()[i].Number, version),
				"")))
		}
	}
	return findings
}

// hidesPassCred reports whether the kernel does not answer SO_PASSCRED for a socket.
func hidesPassCred(f *inventory.File) bool {
	if _, is := f.Inode("socket"); !is {
		return false
	}
	return errors.Is(f.Share(func(fd int) error {
		_, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED)
		return err
	}), unix.EOPNOTSUPP)
}

const (
	cudaPlugin     = "cuda_plugin.so"
	cudaCheckpoint = "cuda-checkpoint"
)

// pluginFindings refuses a criu that would load its own CUDA plugin from libdir. When criu
// begins, the plugin asks every CUDA process for its state, and never gets an answer from a process
// that we have stopped. At restore it works without a GPU map. The plugin switches itself
// off (cuda_plugin.c of criu 4.2) if there is no cuda-checkpoint in criu's PATH. Then the
// finding is a warning, because somebody may install cuda-checkpoint later. It is one as well if the
// plugin would run our cuda-checkpoint: that answers a criu whose action script is the hook that there is
// no restore thread, so the plugin leaves every process alone, and the image does not ask for
// the plugin either.
func pluginFindings(libdir string, given bool, path string) preflight.Findings {
	if libdir == "" {
		return nil
	}
	if _, err := os.Stat(libdir); given && errors.Is(err, os.ErrNotExist) {
		return preflight.Findings{preflight.New(preflight.FindingPluginDir, "criu's libdir "+libdir+" does not exist, and criu fails without it", "mkdir -p "+libdir)}
	}
	plugin := filepath.Join(libdir, cudaPlugin)
	if _, err := os.Stat(plugin); err != nil {
		return nil
	}
	for _, dir := range filepath.SplitList(path) {
		if tool, err := exec.LookPath(filepath.Join(dir, cudaCheckpoint)); err == nil {
			if isOurs(tool) {
				return preflight.Findings{preflight.Warning(preflight.FindingCUDAPlugin, fmt.Sprintf("criu would load its own CUDA plugin, %s, which leaves this job to the hook only as long as %s is cucriu's", plugin, tool), "")}
			}
			return preflight.Findings{preflight.New(preflight.FindingCUDAPlugin, fmt.Sprintf("criu would load its own CUDA plugin, %s, which uses %s on the same processes", plugin, tool), "")}
		}
	}
	return preflight.Findings{preflight.Warning(preflight.FindingCUDAPlugin, fmt.Sprintf("criu would load its own CUDA plugin, %s, which is inactive only as long as there is no cuda-checkpoint in criu's PATH", plugin), "")}
}

// isOurs reports whether a cuda-checkpoint is cucriu's and not NVIDIA's. It does not run it.
func isOurs(tool string) bool {
	info, err := buildinfo.ReadFile(tool)
	return err == nil && info.Path == "cucriu/cmd/cuda-checkpoint"
}

// capabilityFinding is about the effective capabilities. Root in a container may lack some.
func capabilityFinding(effective uint64) preflight.Finding {
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_KILL, "CAP_KILL"}, {unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}} {
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	switch {
	case len(missing) == 0:
		return preflight.Fine(preflight.FindingCapabilities, "has all required capabilities")
	case missing[0] == "CAP_NET_ADMIN":
		return preflight.Warning(preflight.FindingCapabilities, "lacks CAP_NET_ADMIN, which criu needs for processes that have TCP connections", "run with it")
	}
	return preflight.New(preflight.FindingCapabilities, "lacks "+strings.Join(missing, ", "), "")
}

// hugePageFinding gives a tip: the first touch of fresh memory takes a large part of the time
// of checkpoint and restore. The fast lane asks for huge pages (madvise) where it needs them.
func hugePageFinding(mode string) preflight.Finding {
	switch mode {
	case "always", "madvise":
		return preflight.Fine(preflight.FindingTHP, "transparent huge pages: "+mode)
	case "":
		mode = "not available"
	}
	return preflight.New(preflight.FindingTHP, "transparent huge pages: "+mode+"; a checkpoint fills fresh memory, and with 4 KiB pages dump and restore take half as long again", "")
}
