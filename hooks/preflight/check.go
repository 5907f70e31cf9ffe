package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/gpumap"
	"cucriu/internal/image"
	"cucriu/internal/pages"
	"cucriu/internal/proc"
)

// Host is the machine that the checks are about, as the user has configured it.
type Host struct {
	// Driver opens the driver.
	Driver func() (*cudackpt.Driver, error)
	// Map and Unmapped are the user's part of the GPU map: see [gpumap.Make].
	Map      []gpumap.Rule
	Unmapped gpumap.Policy
	// Criu is the path of the criu that is to dump; empty if that is not known.
	Criu string
	// RunDir is the run directory, where the result of a calibration is kept.
	RunDir string
	// Timeout limits how long a check waits for a process to answer.
	Timeout time.Duration
}

// CheckpointDriver opens the driver, and fails if the driver cannot checkpoint.
func (h Host) CheckpointDriver() (*cudackpt.Driver, error) {
	driver, err := h.Driver()
	if err != nil {
		return nil, err
	}
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return nil, err
	}
	return driver, nil
}

// CheckJob finds the reasons for which a dump of the tree below root would be refused, and what
// else there is to say about the tree. imageDir is where its images would go; it is empty if
// that is not known, and it need not exist yet. CheckJob touches nothing. It cannot see managed
// memory: only the checkpoint finds that, and the job then runs on.
func (h Host) CheckJob(ctx context.Context, root int, imageDir string) (Findings, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	open := sync.OnceValues(h.CheckpointDriver)
	in, err := InspectTree(ctx, root, Existing(imageDir), h.RunDir, open)
	if errors.Is(err, proc.ErrGone) {
		return nil, AsRefusal(err)
	}
	if err != nil {
		return nil, err
	}
	if !in.UsesCUDA() {
		return Findings{{Name: FindingCUDA, Severity: SeverityOK, PID: root, Message: "no process of its tree uses CUDA: criu dumps it by itself"}}, nil
	}
	hierarchies, err := proc.ReadHierarchies()
	if err != nil {
		return nil, err
	}
	var findings Findings
	for i := range in.Processes {
		m := &in.Processes[i]
		halted, err := haltedFindings(hierarchies, m)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		findings = append(findings, m.summary())
		findings = append(findings, halted...)
		if len(halted) > 0 {
			continue // the driver would not answer until the process runs again
		}
		driver, _ := open() // it was opened to find this process
		state, err := driver.Process(m.PID).State(ctx)
		if err != nil {
			findings = append(findings, m.about(found(FindingCUDAState, err, "look whether something else checkpoints it")))
			continue
		}
		findings = append(findings, StateFindings(m, state)...)
	}
	options, err := in.tree.optionsFindings(ctx, Asked{Root: root, Criu: h.Criu})
	if err != nil {
		return nil, err
	}
	return slices.Concat(findings, options, in.Findings, InsideFindings(in.PIDs, os.Getpid())), nil
}

// Existing returns dir, or its nearest parent that exists if dir does not.
func Existing(dir string) string {
	for dir != "" {
		_, err := os.Stat(dir)
		absent := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) // its parent may be a file
		if !absent || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// haltedFindings says that a process is stopped or frozen, which is no obstacle to a dump.
func haltedFindings(hierarchies *proc.Hierarchies, m *Process) (Findings, error) {
	frozen, err := hierarchies.FrozenBy(m.PID)
	if err != nil {
		return nil, err
	}
	var findings Findings
	for _, freezer := range frozen {
		findings = append(findings, m.about(fine(FindingFrozen, "is frozen by control group "+freezer.Dir+", which a dump thaws for its time")))
	}
	if m.Stopped && len(frozen) == 0 {
		findings = append(findings, m.about(fine(FindingStopped, "is stopped, and stays so through dump and restore")))
	}
	return findings, nil
}

// anotherImage is the remedy for a damaged image.
const anotherImage = "copy the image again from where it was made, or restore another"

// CheckImage finds the reasons for which a restore of an image on this host would be refused.
func (h Host) CheckImage(ctx context.Context, dir string) (Findings, error) {
	if absent := PresentFindings(dir); len(absent) > 0 {
		return absent, nil
	}
	manifest, err := image.ReadManifest(dir)
	if errors.Is(err, os.ErrNotExist) {
		return Findings{fine(FindingImage, "holds no CUDA process: criu restores it by itself")}, nil
	}
	if err == nil {
		err = manifest.MatchImages(dir)
	}
	if err != nil {
		return Findings{found(FindingImage, err, anotherImage)}, nil
	}
	findings := Findings{fine(FindingImage, fmt.Sprintf("%d CUDA processes, dumped %s with driver %s", len(manifest.Processes), manifest.Created.Local().Format("2006-01-02 15:04:05"), manifest.DriverVersion))}
	if err := manifest.CheckPages(pages.Files{Dir: dir}); err != nil {
		findings = append(findings, found(FindingImage, err, anotherImage))
	}
	driver, err := h.CheckpointDriver()
	if err != nil {
		return append(findings, driverFinding(err)), nil
	}
	plan, err := h.PlanRestore(ctx, driver, manifest)
	for _, line := range plan.Summary() {
		findings = append(findings, fine(FindingGPUMap, line))
	}
	if err != nil {
		findings = append(findings, PlanFinding(err))
	}
	return findings, nil
}

// PlanFinding turns the error of [Host.PlanRestore], the reason why a host cannot take an image,
// into a finding.
func PlanFinding(err error) Finding {
	var mapError *gpumap.MapError
	var version *DriverVersionError
	var memory *MemoryError
	switch {
	case errors.As(err, &version):
		return found(FindingDriverVersion, err, "")
	case errors.As(err, &memory):
		return found(FindingGPUMemory, err, "")
	case errors.As(err, &mapError):
		return refuse(FindingGPUMap, mapError.Cause, mapError.Remedy)
	case errors.Is(err, cudackpt.ErrNotSupported):
		return driverFinding(err)
	}
	return found(FindingGPUMemory, err, "see nvidia-smi on this host")
}
