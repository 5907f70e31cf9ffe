package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/internal/fault"
	"cucriu/internal/gpumap"
	"cucriu/internal/image"
	"cucriu/internal/proc"
)

// PlanRestore plans where an image's GPUs go on this host. It fails if the host cannot take the
// image: another driver, a map that is not possible, or too little free memory. It changes
// nothing.
func (h Host) PlanRestore(ctx context.Context, driver *cudackpt.Driver, manifest image.Manifest) (gpumap.Plan, error) {
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return gpumap.Plan{}, err
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return gpumap.Plan{}, err
	}
	if version != manifest.DriverVersion {
		made := manifest.DriverVersion
		return gpumap.Plan{}, &DriverVersionError{*fault.New(fmt.Sprintf("the image was made with driver %s and this host has %s", made, version),
			"restore it on a host with driver "+made+": the driver's own state is part of the image, so both must be the same version"), made, version}
	}
	visible, err := driver.OwnGPUs()
	if err != nil {
		return gpumap.Plan{}, err
	}
	captured := make([][]cudackpt.GPU, len(manifest.Processes))
	for i, p := range manifest.Processes {
		captured[i] = p.GPUs
	}
	plan, err := gpumap.Make(gpumap.Union(captured...), visible, h.Map, h.Unmapped)
	if err != nil {
		return gpumap.Plan{}, err
	}
	need := make(MemoryNeed)
	for _, p := range manifest.Processes {
		pairs := plan.Pairs(gpumap.UUIDsOf(p.GPUs))
		if len(pairs) > 0 {
			if err := driver.Supports(cudackpt.FeatureGPUPairs); err != nil {
				return plan, err
			}
		}
		need.Add(p.MemoryBytes, pairs)
	}
	return plan, need.Require(ctx, driver)
}

// explained has the methods of the errors that it is part of.
type explained = fault.Explained

// DriverVersionError says that an image was made with another driver than this host has.
type DriverVersionError struct {
	explained
	Image, Host string // "580.159.04"
}

// PresentFindings refuses a directory that holds no image.
func PresentFindings(dir string) Findings {
	remedy := "name the directory of an image"
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrPermission):
		remedy = "run as root"
		fallthrough
	case err != nil:
		err = fmt.Errorf("image directory: %w", err)
	case len(entries) == 0:
		err = fmt.Errorf("image directory %s is empty", dir)
	case !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "inventory.img" || e.Name() == image.ManifestName }):
		err = fmt.Errorf("neither an image of criu (inventory.img) nor a manifest of cucriu is in %s", dir)
	default:
		return nil
	}
	return Findings{found(FindingImage, err, remedy)}
}

// DamagedFinding refuses an image for what is wrong with its files.
func DamagedFinding(err error) Finding { return found(FindingImage, err, anotherImage) }

// SurroundingsFindings refuse a restore on a host that lacks what the job was connected
// with. criu finds that only when it has created processes. input is the standard input of
// the criu that is to restore.
func SurroundingsFindings(o image.Options, input *os.File) Findings {
	var findings Findings
	for _, name := range o.Sockets {
		if !hasUNIXSocket(name) {
			findings = append(findings, refuse(FindingUNIXSocket, fmt.Sprintf("the job sends to the UNIX socket %s, which does not exist here", name),
				"start the service that has this socket, and restore again"))
		}
	}
	if _, err := unix.IoctlGetTermios(int(input.Fd()), unix.TCGETS); err != nil && o.Terminal {
		findings = append(findings, refuse(FindingTerminal, "the job uses a terminal, and the restore has none on its standard input",
			"restore from a terminal, or with one of its own, as in: script -qc 'cucriu restore …' /dev/null"))
	}
	return findings
}

func hasUNIXSocket(name string) bool {
	if filepath.IsAbs(name) {
		info, err := os.Stat(name)
		return err == nil && info.Mode().Type() == os.ModeSocket
	}
	list, err := os.ReadFile("/proc/net/unix")
	return err != nil || strings.Contains(string(list), " "+name+"\n")
}

// reapTime is how long [TakenPIDs] waits for a zombie to be reaped: right after a dump that has
// ended the job, its parent may not have come to it yet.
const reapTime = time.Second

// TakenPIDs refuses a restore that needs pids which are in use on this host. criu finds that only
// when it creates the processes. It is a check: a number that is free now may be taken by then.
func TakenPIDs(ctx context.Context, needed []int) (Findings, error) {
	inner, err := proc.IsInInnerPIDNamespace()
	if err != nil || inner {
		return nil, err // what /proc shows are other pids than those that criu will get
	}
	ctx, cancel := context.WithTimeout(ctx, reapTime)
	defer cancel()
	for {
		holders, err := proc.HoldersOf(needed)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(holders)), func(h proc.Holder) bool { return h.Ended }) {
			return takenFindings(holders), nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return takenFindings(holders), nil
		case <-time.After(10 * time.Millisecond): // nobody but its parent is told that it was reaped
		}
	}
}

// takenFindings makes one finding for each process that has something which a restore needs.
func takenFindings(holders map[int]proc.Holder) Findings {
	numbers := make(map[int][]int) // by the pid of the process
	for id, holder := range holders {
		numbers[holder.PID] = append(numbers[holder.PID], id)
	}
	var findings Findings
	for pid, ids := range numbers {
		slices.Sort(ids)
		first := ids[0]
		if _, own := holders[pid]; own {
			first = pid
		}
		holder := holders[first]
		f := Finding{
			Name: FindingPIDTaken, Severity: SeverityError, PID: pid, Process: holder.Name,
			Message: fmt.Sprintf("has the %s %d, which a process of the image must get again", holder.As, first),
			Remedy:  "if it is the job itself, which still runs, end it first; else wait until it has ended, or end it",
		}
		if n := len(ids) - 1; n > 0 {
			f.Message += fmt.Sprintf(" (and %d more numbers of the image)", n)
		}
		if holder.Ended {
			f.Message = fmt.Sprintf("has ended, but keeps the %s %d, which a process of the image must get again, until its parent, process %d, waits for it", holder.As, first, holder.PPID)
			f.Remedy = "wait for that, or end the parent"
		}
		findings = append(findings, f)
	}
	slices.SortFunc(findings, func(a, b Finding) int { return a.PID - b.PID })
	return findings
}
