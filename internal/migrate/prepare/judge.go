package prepare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"cucriu/criuutil"
	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/criuimage"
)

// Room is what a destination offers.
type Room struct {
	// Dir is where the image is received. It need not exist yet.
	Dir string
	// Criu is the path of the criu that is to restore the job; empty for the system's.
	Criu string
	// Copy says which files are to be copied here.
	Copy Copy
	// TCP says what becomes of connections with other programs.
	TCP TCP
	// Ahead says that the job's memory is sent ahead, so that there are two images.
	Ahead bool
}

// Copy says which files of a job a migration copies.
type Copy string

// The kinds of copies.
const (
	CopyNone    Copy = ""        // none
	CopyMissing Copy = "missing" // those that the destination has not
	CopyChanged Copy = "changed" // those as well, that the job writes, where the destination has others by their names
)

// Judge finds out at the destination whether a job can come. It touches nothing.
func Judge(ctx context.Context, hook *hooks.Hook, j *Job, room Room) (*Judgement, error) {
	if err := j.Validate(); err != nil {
		return nil, err
	}
	hook = hook.Filled()
	here, err := thisHost(ctx, room.Criu)
	if err != nil {
		return nil, err
	}
	findings, err := machineFindings(ctx, hook, j, room.Criu)
	if err != nil {
		return nil, err
	}
	findings = append(findings, hostFindings(j, here)...)
	if here.Criu != "" {
		findings = append(findings, featureFindings(ctx, j, room.Criu)...)
	}
	findings = append(findings, gpuFindings(ctx, hook, j)...)
	pids, err := pidFindings(ctx, j)
	if err != nil {
		return nil, err
	}
	memory, ahead, err := room.findings(j, arriving)
	if err != nil {
		return nil, err
	}
	files, look, err := fileFindings(j, here.BootID, room.Copy)
	if err != nil {
		return nil, err
	}
	surroundings, err := surroundingsFindings(j)
	if err != nil {
		return nil, err
	}
	ports, err := portFindings(j, room.TCP)
	if err != nil {
		return nil, err
	}
	judgement := Judged(hook, here.Name, slices.Concat(findings, pids, memory, files, surroundings, ports))
	judgement.Copies, judgement.Makes = look.copies, look.makes
	judgement.RoomAhead, judgement.LargestArea = ahead, criuimage.LargestArea()
	return judgement, nil
}

// machineFindings look at this machine. A job without CUDA needs no driver. How to name another criu is said to
// the user, who is at the source.
func machineFindings(ctx context.Context, hook *hooks.Hook, j *Job, criu string) (preflight.Findings, error) {
	findings, err := checkpoint.CheckMachine(ctx, hook, criu)
	if j.manifest() == nil {
		findings = slices.DeleteFunc(findings, func(f preflight.Finding) bool {
			return slices.Contains([]string{preflight.FindingDriver, preflight.FindingDriverMissing, preflight.FindingDriverOld, preflight.FindingTHP}, f.Name)
		})
	}
	for i, f := range findings {
		if before, _, names := strings.Cut(f.Remedy, " with --criu"); names {
			findings[i].Remedy = before + ` with --remote-cucriu "env CUCRIU_CRIU=PATH cucriu"`
		}
	}
	return findings, err
}

// gpuFindings look for GPUs of this host that can take the place of the job's.
func gpuFindings(ctx context.Context, hook *hooks.Hook, j *Job) preflight.Findings {
	manifest := j.manifest()
	if manifest == nil {
		return nil
	}
	if len(j.Map) > 0 {
		mapped := *hook
		mapped.Config.GPUs.Map = j.Map
		hook = &mapped
	}
	plan, err := checkpoint.PlanGPUs(ctx, hook, *manifest)
	var findings preflight.Findings
	for i, a := range plan.Assignments {
		findings = append(findings, preflight.Fine(preflight.FindingGPUMap, fmt.Sprintf("GPU %d of the job (%s, %s, %s) goes to %s, %s: %v",
			i, a.From.Model, a.From.PCIBusID, size(j.heldOn(a.From.UUID)), a.To.UUID, a.To.PCIBusID, a.Reason)))
	}
	refused := new(checkpoint.PlanError)
	if !errors.As(err, &refused) { // if there is no driver, machineFindings say so
		return findings
	}
	if f := refused.Finding; f.Name != preflight.FindingDriverVersion {
		return append(findings, f)
	}
	return append(findings, preflight.New(preflight.FindingDriverVersion,
		fmt.Sprintf("the job runs with driver %s, but this host has %s", j.DriverVersion, refused.DriverVersion),
		"move it to a host with driver "+j.DriverVersion+": the driver's own state moves with the job, so both must be the same version"))
}

// heldOn returns how many bytes the job holds on a GPU.
func (j *Job) heldOn(gpu cudackpt.UUID) uint64 {
	var sum uint64
	for _, p := range j.Processes {
		sum += p.MemoryBytes[gpu]
	}
	return sum
}

// clockTolerance is a jump of the monotonic clock that is not told. It is longer than the way of a
// job's description to another host, which counts as one.
const clockTolerance = time.Minute

// hostFindings compare two machines.
func hostFindings(j *Job, here Host) preflight.Findings {
	var findings preflight.Findings
	add := func(f preflight.Finding) { findings = append(findings, f) }
	there := j.Host
	if here.Architecture != there.Architecture {
		message := fmt.Sprintf("the job runs on %s, but this host is %s", there.Architecture, here.Architecture)
		return preflight.Findings{preflight.New(preflight.FindingArchitecture, message, "move it to a host of the same architecture")}
	}
	lacks := slices.DeleteFunc(slices.Clone(there.CPU.Features), func(name string) bool { return slices.Contains(here.CPU.Features, name) })
	if len(lacks) > 0 {
		add(preflight.New(preflight.FindingCPU,
			fmt.Sprintf("this host's processor (%s) lacks features of the job's (%s): %s", here.CPU.Model, there.CPU.Model, strings.Join(lacks, ", ")),
			"programs select code for the processor when they start, and die with SIGILL on one that lacks its features: "+
				"move the job to a host with such a processor, or force this if the job uses none of them"))
	} else {
		add(preflight.Fine(preflight.FindingCPU, here.CPU.Model+" has all features of the job's processor"))
	}
	if older(here.Kernel, there.Kernel) {
		add(preflight.Warning(preflight.FindingKernel, fmt.Sprintf("this host's kernel %s is older than the job's, %s", here.Kernel, there.Kernel),
			"a program may use features that only the newer kernel has"))
	}
	if older(here.Criu, there.Criu) {
		add(preflight.New(preflight.FindingCriuVersion,
			fmt.Sprintf("CRIU %s is older than the one that would make the image, %s", here.Criu, there.Criu), "install the same CRIU here"))
	}
	if jump := here.Monotonic - there.Monotonic; !j.Own.Time && here.BootID != there.BootID && jump.Abs() > clockTolerance {
		add(preflight.Warning(preflight.FindingClock, fmt.Sprintf("the job's monotonic clock jumps by %v", jump.Round(time.Second)),
			"a program that waits for a point in time on this clock may wait too long, or not at all: jobs of cucriu run have their own clocks"))
	}
	return findings
}

// older reports whether a version is known to be older than another.
func older(a, b string) bool {
	va, err := criuutil.ParseVersion(a)
	vb, errB := criuutil.ParseVersion(b)
	return err == nil && errB == nil && va.Before(vb.Major, vb.Minor)
}

// featureFindings ask this host's criu for what the job needs of it.
func featureFindings(ctx context.Context, j *Job, criu string) preflight.Findings {
	var findings preflight.Findings
	for _, feature := range j.Features {
		if !criuutil.HasFeature(ctx, criu, feature) {
			message := "criu check --feature " + feature + " fails on this host, but the job needs it"
			findings = append(findings, preflight.New(preflight.FindingCriuFeature, message, "install the same criu and kernel as on the job's host"))
		}
	}
	return findings
}

// pidFindings look whether the job can have its pids.
func pidFindings(ctx context.Context, j *Job) (preflight.Findings, error) {
	if j.Own.PID {
		return preflight.Findings{preflight.Fine(preflight.FindingPIDTaken, "the job has a pid namespace of its own")}, nil
	}
	const remedy = "end that process, or wait until it has ended; a job of cucriu run has pids of its own"
	findings, err := checkpoint.CheckPIDs(ctx, j.Numbers)
	if err != nil {
		return nil, err
	}
	for i := range findings {
		findings[i].Remedy = remedy
	}
	data, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return nil, err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("pid_max: %w", err)
	}
	if highest := slices.Max(append(slices.Clone(j.Numbers), 0)); highest >= most {
		message := fmt.Sprintf("the job has the pid %d, but this host's pids end at %d", highest, most-1)
		findings = append(findings, preflight.New(preflight.FindingPIDTaken, message, fmt.Sprintf("sysctl kernel.pid_max=%d", maxPID)))
	}
	if len(findings) == 0 {
		message := fmt.Sprintf("the %d numbers of its processes and threads are free", len(j.Numbers))
		findings = preflight.Findings{preflight.Fine(preflight.FindingPIDTaken, message)}
	}
	return findings, nil
}
