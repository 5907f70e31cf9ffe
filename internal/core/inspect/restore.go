package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/gpumap"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/twice"
	"cucriu/internal/kit/units"
)

// PlanRestore plans where an image's GPUs go on this host. It fails if the host cannot take the
// image: another driver, a map that is not possible, or too little free memory. It changes nothing.
func (h Host) PlanRestore(ctx context.Context, driver *cudackpt.Driver, manifest imagedir.Manifest) (gpumap.Plan, error) {
	if err := driver.Supports(cudackpt.FeatureCheckpoint); err != nil {
		return gpumap.Plan{}, err
	}
	version, err := driver.DriverVersion()
	if err != nil {
		return gpumap.Plan{}, err
	}
	if made := manifest.DriverVersion; version != made {
		return gpumap.Plan{}, &DriverVersionError{fault.New(fmt.Sprintf("the image was made with driver %s, but this host has %s", made, version),
			"restore it on a host with driver "+made+": the driver's own state is part of the image, so both must be the same version"), made, version}
	}
	visible := h.Visible
	if visible == nil {
		if visible, err = driver.OwnGPUs(); err != nil {
			return gpumap.Plan{}, err
		}
	}
	plan, err := gpumap.Make(manifest.GPUs(), visible, h.Map, h.Unmapped)
	if err != nil {
		return gpumap.Plan{}, err
	}
	need := make(MemoryNeed)
	for _, p := range manifest.Processes {
		pairs := plan.Pairs().Of(p.GPUs)
		if told, _ := pairs.For(visible); len(told) > 0 { // all of them are visible
			if err := driver.Supports(cudackpt.FeatureGPUPairs); err != nil {
				return plan, err
			}
		}
		need.Add(p.MemoryBytes, pairs)
	}
	var promised MemoryNeed
	if h.Promised != nil {
		promised = h.Promised()
	}
	return plan, need.Require(ctx, driver, promised)
}

// MemoryNeed is what a restore will take of each GPU's memory, in bytes.
type MemoryNeed map[cudackpt.UUID]uint64

// restoreMargin is added for each process and GPU. A checkpoint was seen to free 8 MiB more
// than the driver had accounted to its process.
const restoreMargin = 16 << 20

// Add adds what a process that held this memory will take on the GPUs to which it goes.
func (n MemoryNeed) Add(memory map[cudackpt.UUID]uint64, pairs []cudackpt.GPUPair) {
	for uuid, size := range memory {
		to := uuid
		for _, pair := range pairs {
			if pair.Old == uuid {
				to = pair.New
			}
		}
		if size > math.MaxUint64-restoreMargin-n[to] {
			n[to] = math.MaxUint64
			continue
		}
		n[to] += size + restoreMargin
	}
}

// Require fails if a GPU has less free memory than the restore will take beside what is promised to others. This must
// be known before the driver is asked: a process whose restore runs out of memory can never be restored again.
func (n MemoryNeed) Require(ctx context.Context, driver *cudackpt.Driver, promised MemoryNeed) error {
	for _, uuid := range slices.SortedFunc(maps.Keys(n), cudackpt.UUID.Compare) {
		memory, err := driver.Memory(ctx, uuid)
		if err != nil {
			return &memoryError{Explained: fault.Because(err, fmt.Sprintf("cannot determine how much memory of %v is free (%v), and a restore that runs out of it would lose the process", uuid, err),
				"run as root, and see whether nvidia-smi reports it")}
		}
		if memory.Free < n[uuid] {
			return &memoryError{Explained: fault.New(fmt.Sprintf("%v has %d MiB free and the restore needs %d MiB", uuid, memory.Free>>20, n[uuid]>>20), "free memory on it, or map to another GPU")}
		}
		if memory.Free-n[uuid] < promised[uuid] {
			text := fmt.Sprintf("%v has %d MiB free, of which jobs that are being dumped or restored may need %d MiB, and "+
				"the restore needs %d MiB", uuid, memory.Free>>20, promised[uuid]>>20, n[uuid]>>20)
			remedy := "try again when they are done, or map to another GPU"
			return &memoryError{Explained: fault.New(text, remedy), patience: promisePatience}
		}
	}
	return nil
}

// wayBackFindings refuses processes that hold all but little of a GPU's memory: once they are checkpointed, they would need more
// of it than they hold now to come back.
func wayBackFindings(ctx context.Context, driver *cudackpt.Driver, processes []Process) (findings preflight.Findings) {
	margins := make(MemoryNeed)
	for _, p := range processes {
		for uuid := range p.MemoryBytes {
			margins[uuid] += restoreMargin
		}
	}
	for _, uuid := range slices.SortedFunc(maps.Keys(margins), cudackpt.UUID.Compare) {
		memory, err := driver.Memory(ctx, uuid)
		if err == nil && memory.Free < margins[uuid] { // after an error no restore begins either
			findings = append(findings, preflight.New(preflight.FindingGPUMemory,
				fmt.Sprintf("%v has %d MiB free: to be sure that what is checkpointed can come back to it, %d MiB must be", uuid, memory.Free>>20, margins[uuid]>>20), "free memory on it"))
		}
	}
	return findings
}

// neighborFindings refuse a job on several GPUs while another program uses one of these. A GPU interrupts no
// kernel of a process that the driver has restored (measured on 580.159.04). If one runs for some 4.5 s while another
// process waits for its turn, the kernel module ends all work of the restored one (Xid 109, CUDA error 719). Kernels
// on several GPUs wait for each other, also those of one process (NCCL): for a rank that is late, or stopped by the
// next dump, or because another program has its turn on one of the GPUs.
func neighborFindings(
	ctx context.Context, processes []Process, contextsOn func(context.Context, cudackpt.UUID) ([]int, error),
) preflight.Findings {
	used := make(map[cudackpt.UUID]bool)
	for _, p := range processes {
		for gpu := range p.Listed {
			used[gpu] = true
		}
	}
	if len(used) < 2 {
		return nil
	}
	for _, gpu := range slices.SortedFunc(maps.Keys(used), cudackpt.UUID.Compare) {
		pid, found := neighbor(ctx, processes, func() ([]int, error) { return contextsOn(ctx, gpu) }, proc.IsEnding)
		if found {
			return preflight.Findings{preflight.New(preflight.FindingGPUInUse, partner(processes, pid)+" uses a GPU of the "+
				"job, too: once the job has been restored, that GPU cannot interrupt its kernels, and ends them if one "+
				"waits for another GPU for some seconds", "")}
		}
	}
	return nil
}

// endingPatience is how long the context of a program that is ending may stay on a GPU.
const endingPatience = 5 * time.Second

// neighbor returns a process with a context on a GPU that is none of processes. It waits for those that are ending:
// their contexts go with them. An error of contexts says nothing about neighbors, and counts as none.
func neighbor(ctx context.Context, processes []Process, contexts func() ([]int, error),
	isEnding func(pid int) bool,
) (pid int, found bool) {
	patience, cancel := context.WithTimeout(ctx, endingPatience)
	defer cancel()
	tick := time.NewTicker(endingPatience / 100)
	defer tick.Stop()
	for {
		pids, err := contexts()
		if err != nil {
			return 0, false
		}
		others := slices.DeleteFunc(pids, func(pid int) bool {
			return slices.ContainsFunc(processes, func(p Process) bool { return p.PID == pid })
		})
		if len(others) == 0 {
			return 0, false
		}
		if at := slices.IndexFunc(others, func(pid int) bool { return !isEnding(pid) }); at >= 0 {
			return others[at], true
		}
		select {
		case <-tick.C:
		case <-patience.Done():
			return others[0], true
		}
	}
}

// DriverVersionError says that an image was made with another driver than this host has.
type DriverVersionError struct {
	*fault.Explained
	Image, Host string // "580.159.04"
}

// PlanFinding turns the error of [Host.PlanRestore], the reason why a host cannot take an image,
// into a finding.
func PlanFinding(err error) preflight.Finding {
	var mapError *gpumap.MapError
	var version *DriverVersionError
	var memory *memoryError
	switch {
	case errors.As(err, &version):
		return preflight.Found(preflight.FindingDriverVersion, err)
	case errors.As(err, &mapError):
		return preflight.New(preflight.FindingGPUMap, mapError.Cause, mapError.Remedy)
	case errors.As(err, &memory):
		return preflight.Found(cmp.Or(memory.Finding, preflight.FindingGPUMemory), err)
	}
	return driverFinding(err)
}

// CheckImage finds the reasons for which a restore of an image on this host would be refused.
func (h Host) CheckImage(ctx context.Context, img *imagedir.Image) (preflight.Findings, error) {
	if absent := image.PresentFindings(img.Dir); len(absent) > 0 {
		return absent, nil
	}
	fine := func(name, message string) preflight.Findings {
		return preflight.Findings{preflight.Fine(name, message)}
	}
	manifest, err := img.Manifest()
	if errors.Is(err, os.ErrNotExist) {
		return fine(preflight.FindingImage, "contains no CUDA process: criu restores it by itself"), nil
	}
	if err == nil {
		err = manifest.MatchImages(img.Dir)
	}
	if err != nil {
		return preflight.Findings{preflight.Found(preflight.FindingImage, err)}, nil
	}
	findings := fine(preflight.FindingImage, fmt.Sprintf("%s, dumped %s with driver %s", units.Count(len(manifest.Processes), "CUDA process"), manifest.Created.Local().Format("2006-01-02 15:04:05"), manifest.DriverVersion))
	if err := manifest.CheckPages(img.Dir); err != nil {
		findings = append(findings, preflight.Found(preflight.FindingImage, err))
	}
	driver, err := h.CheckpointDriver()
	if err != nil {
		return append(findings, driverFinding(err)), nil
	}
	plan, err := h.PlanRestore(ctx, driver, manifest)
	for _, line := range plan.Summary() {
		findings = append(findings, fine(preflight.FindingGPUMap, line)...)
	}
	if err != nil {
		findings = append(findings, PlanFinding(err))
	}
	return append(findings, h.memoryFindings(img.Dir, &manifest)...), nil
}

// SurroundingsFindings refuse a restore on a host that lacks what the job was connected
// with. criu finds that only when it has created processes. input is the standard input of
// the criu that is to restore.
func SurroundingsFindings(o image.Options, input *os.File) preflight.Findings {
	var findings preflight.Findings
	for _, name := range o.Sockets {
		if !hasUNIXSocket(name) {
			findings = append(findings, preflight.New(preflight.FindingUNIXSocket, fmt.Sprintf("the job sends to the UNIX socket %s, which does not exist here", name),
				"start the service that has this socket, and restore again"))
		}
	}
	if _, err := unix.IoctlGetTermios(int(input.Fd()), unix.TCGETS); err != nil && o.Terminal {
		findings = append(findings, preflight.New(preflight.FindingTerminal, "the job uses a terminal, but the restore has none on its standard input", ""))
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

// AddressFindings refuse a restore if the network of the calling thread lacks an address that the job's sockets have,
// or if a program has a port or a connection of theirs there. criu finds that when it has made processes; two jobs that
// set SO_REUSEPORT would divide the clients without a word. It is a check, by a trial: a port that is free now may be
// taken by then. within is how a command is run in that network, in remedies.
func AddressFindings(img *imagedir.Image, within string) (findings preflight.Findings) {
	sockets, _ := img.Sockets() // of an image that is read elsewhere, or damaged, there are none
	found := func(message, remedy string) {
		findings = append(findings, preflight.New(preflight.FindingTCPAddress, message, remedy))
	}
	// holder returns the socket of a process, of those that pick picks; 0 if no process has any.
	holder := func(pick func(proc.TCPSocket) bool) (inode uint64, err error) {
		here, err := proc.TCPSockets(unix.Gettid())
		if i := slices.IndexFunc(here, func(s proc.TCPSocket) bool { return s.Inode != 0 && pick(s) }); i >= 0 {
			inode = here[i].Inode
		}
		return inode, err
	}
	for _, address := range sockets.Local {
		any := criuimage.Binding{Address: netip.AddrPortFrom(address, 0), Kind: unix.SOCK_DGRAM}
		lacks := errors.Is(tryBinding(any), unix.EADDRNOTAVAIL)
		remedy := fmt.Sprintf("give it the address: %sip address add %v/%d dev lo", within, address, address.BitLen())
		if address.IsLoopback() { // one that is down lets programs bind, and leads nowhere
			lacks = lacks || !criuimage.Reaches(netip.AddrPortFrom(address, 1))
			remedy = "set its loopback interface up: " + within + "ip link set lo up"
		}
		if lacks {
			found(fmt.Sprintf("the job has sockets at %v, an address that this network does not have", address), remedy)
		}
	}
	for _, b := range sockets.Bindings {
		var err error
		var inode uint64
		lasts(func() bool { // who had it may just be ending
			if err = tryBinding(b); errors.Is(err, unix.EADDRINUSE) && b.Kind == unix.SOCK_STREAM {
				of, listErr := holder(func(s proc.TCPSocket) bool { return s.Local.Port() == b.Address.Port() })
				if inode = of; inode == 0 && listErr == nil { // connections that nobody holds are removed before criu binds
					err = nil
				}
			}
			return err != nil
		})
		if errors.Is(err, unix.EADDRINUSE) {
			kind := map[int]string{unix.SOCK_STREAM: "TCP", unix.SOCK_DGRAM: "UDP"}[b.Kind]
			found(fmt.Sprintf("the job waits for others at %s %v, which %s uses", kind, b.Address, programOf(inode)),
				fmt.Sprintf("end that program (%sss -tulnp 'sport = %d' names it)", within, b.Address.Port()))
		}
	}
	begun, _ := proc.TCPSockets(unix.Gettid())
	for _, c := range sockets.Inside {
		var inode uint64
		is := func(s proc.TCPSocket) bool {
			return s.Local == c.Local && s.Remote == c.Remote || s.Local == c.Remote && s.Remote == c.Local
		}
		if slices.ContainsFunc(begun, is) && lasts(func() bool { inode, _ = holder(is); return inode != 0 }) {
			found(fmt.Sprintf("the job has a TCP connection from %v, which %s has, too", c, programOf(inode)),
				"end that program, or restore the job in another network")
			break // there may be thousands
		}
	}
	return findings
}

// programOf names the program that has a socket, if that can be seen from here.
func programOf(inode uint64) string {
	pids, _ := proc.All()
	for _, pid := range pids {
		open, _ := proc.Descriptors(pid) // it may have ended
		for _, link := range open {
			if link != fmt.Sprintf("socket:[%d]", inode) {
				continue
			}
			if status, err := proc.ReadStatus(pid); err == nil {
				return fmt.Sprintf("process %d (%s)", pid, proc.Printable(status.Name))
			}
		}
	}
	return "another program"
}

// tryBinding binds a socket as criu would, but for SO_REUSEPORT, and closes it.
func tryBinding(b criuimage.Binding) error {
	family := unix.AF_INET
	var address unix.Sockaddr
	if port := int(b.Address.Port()); b.Address.Addr().Is4() {
		address = &unix.SockaddrInet4{Port: port, Addr: b.Address.Addr().As4()}
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: b.Address.Addr().As16()}
	}
	fd, err := unix.Socket(family, b.Kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := map[bool]int{true: 1}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, value[b.Kind == unix.SOCK_STREAM]), // as criu does
		unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, value[b.FreeBind]),
	)
	if err == nil && family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, value[b.OnlyIPv6])
	}
	if err != nil {
		return err
	}
	return unix.Bind(fd, address)
}

// How long [TakenPIDs] waits for processes that are about to be gone: right after a dump that has ended
// the job, or a restore that failed, they may still be exiting, or not reaped yet, or reaped while the
// kernel has not yet freed their numbers.
const (
	exitTime = 30 * time.Second
	reapTime = 10 * time.Second
	sayAfter = 500 * time.Millisecond // what is over sooner is not worth a line
)

// TakenPIDs refuses a restore that needs pids which are in use on this host. criu finds that only
// when it creates the processes. It is a check: a number that is free now may be taken by then. say is
// told what it waits for.
func TakenPIDs(
	ctx context.Context, start twice.Start, needed []int, say func(text string),
) (preflight.Findings, error) {
	if twice.May(start, twice.Fact{Seen: twice.PIDsTaken}) == nil {
		return nil, nil // they are not those of this namespace
	}
	inner, err := proc.IsInInnerPIDNamespace()
	if err != nil || inner {
		return nil, err // what /proc shows are other pids than those that criu will get
	}
	begun, said := time.Now(), false
	for reapFrom := begun; ; {
		holders, err := proc.HoldersOf(needed)
		if err != nil {
			return nil, err
		}
		all := slices.SortedFunc(maps.Values(holders), func(a, b proc.Holder) int { return cmp.Compare(a.PID, b.PID) })
		at := slices.IndexFunc(all, func(h proc.Holder) bool { return h.Exiting })
		if at < 0 || time.Since(begun) > exitTime {
			return takenFindings(holders), nil
		}
		if slices.ContainsFunc(all, func(h proc.Holder) bool { return h.Exiting && !h.Ended }) {
			reapFrom = time.Now()
		} else if time.Since(reapFrom) > reapTime {
			return takenFindings(holders), nil
		}
		if h := all[at]; h.Ended && !said && time.Since(reapFrom) > sayAfter {
			said = true
			if h.PID == 0 {
				say(fmt.Sprintf("the kernel has not yet freed the pids of processes that have ended; retrying for %v", reapTime))
			} else {
				say(fmt.Sprintf("pid %d is not yet reaped by PID %d; retrying for %v", h.PID, h.PPID, reapTime))
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond): // nobody but its parent is told that it was reaped
		}
	}
}

// takenFindings makes one finding for each process that has something which a restore needs: its pid,
// rather than its other numbers.
func takenFindings(holders map[int]proc.Holder) preflight.Findings {
	numbers := make(map[int][]int) // by the pid of the process
	for id, holder := range holders {
		numbers[holder.PID] = append(numbers[holder.PID], id)
	}
	var findings preflight.Findings
	for _, pid := range slices.Sorted(maps.Keys(numbers)) {
		ids := numbers[pid]
		first := slices.Min(ids)
		if slices.Contains(ids, pid) {
			first = pid
		}
		holder := holders[first]
		message, remedy, of := fmt.Sprintf("has a %s that the image needs", holder.As), "", " of its threads and groups"
		if pid == 0 {
			message, remedy, of = fmt.Sprintf("the image needs pid %d, which the kernel has not freed, though /proc shows no process that has it", first),
				"wait, or restore in a pid namespace of its own (unshare --pid --fork --mount-proc cucriu restore --foreground -D DIR)", ""
		}
		if n := len(ids) - 1; n > 0 {
			message += fmt.Sprintf(" (and %s%s)", units.Count(n, "more ID"), of)
		}
		if holder.Ended && pid != 0 {
			message = fmt.Sprintf("has ended, but is not yet reaped by PID %d, and has a %s that the image needs", holder.PPID, holder.As)
			remedy = fmt.Sprintf("wait, or end process %d", holder.PPID)
			if holder.PPID == 1 {
				remedy = "wait; a container whose PID 1 never reaps needs an init that does (docker run --init)"
			}
		}
		f := preflight.New(preflight.FindingPIDTaken, message, remedy)
		f.PID, f.Process = pid, holder.Name
		findings = append(findings, f)
	}
	return findings
}
