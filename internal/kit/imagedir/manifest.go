package imagedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/kit/units"
)

// ManifestName is the manifest's file name in the image directory.
const ManifestName = "cucriu.json"

const (
	ManifestVersion  = 2 // the version that a dump writes; version 1 has no parked threads
	RewrittenVersion = 3 // with pages in shards that other dumps have written
	ScheduledVersion = 4 // with the scheduling of threads
	GatedVersion     = 5 // with a process that the library in it holds back
	BasedVersion     = 6 // that is complete only together with an earlier image
	SettingsVersion  = 7 // with what processes and sockets are given again
	latestVersion    = SettingsVersion
	maxProcesses     = 1 << 14
	maxGPUs          = 1 << 8
	maxMemoryBytes   = 1 << 50 // of one process, on one GPU
)

var manifestKind = records.Kind[Manifest]{
	Name: ManifestName, What: "manifest", Version: latestVersion, Limit: 64 << 20, Strict: true, Check: (*Manifest).Validate,
	Remedy: "copy the image again from its source, or restore another one",
}

// Manifest tells the restore side which CUDA processes criu's image holds, and what they need.
// It lies beside criu's own files.
type Manifest struct {
	Version       int       `json:"version"`
	Created       time.Time `json:"created"`
	DriverVersion string    `json:"driver_version"` // of the kernel driver, e.g. 580.159.04
	RootPID       int       `json:"root_pid"`       // of the dumped tree, as in the image
	Processes     []Process `json:"processes"`
	// StoppedOthers are the pids, as in the image, of processes without CUDA that were already
	// stopped before the dump. They stay stopped after the restore.
	StoppedOthers []int `json:"stopped_others,omitempty"`
	// Parked are the threads that wait in criu's image, and what they need to continue. Without it
	// the restored processes never run.
	Parked []inject.Parked `json:"parked,omitempty"`
	// Scheduling is what criu does not restore of the threads of any process.
	Scheduling []proc.Scheduling `json:"scheduling,omitempty"`
	// Settings is what criu does not restore of any process.
	Settings []proc.Settings `json:"settings,omitempty"`
	// Base is the directory of an earlier image, without which this one is not complete; empty if it is.
	Base string `json:"base,omitempty"`
}

// Process is one CUDA process of the image.
type Process struct {
	PID  int    `json:"pid"` // as in the image: the pid in its innermost pid namespace
	Name string `json:"name"`
	// Stopped says that the process was already stopped before the dump. It stays stopped after
	// the restore.
	Stopped bool `json:"stopped"`
	// Running says that the process runs in criu's image and is not in the group-stop: a v1
	// freezer held it while it was dumped.
	Running bool `json:"running,omitempty"`
	// GPUs are all GPUs that the process could see when it was checkpointed, used or not, in
	// the driver's order. They are the old side of the restore's pairs.
	GPUs []cudackpt.GPU `json:"gpus"`
	// MemoryBytes is what the process held on each GPU. A GPU that is not in the map was not
	// used.
	MemoryBytes map[cudackpt.UUID]uint64 `json:"memory_bytes"`
	// Gated says that the library in the process holds its calls to the driver back, and may have GPU memory
	// to bring back.
	Gated bool `json:"gated,omitempty"`
	// Out says where the library in the process has put GPU memory; nil if it has not.
	Out *Out `json:"out,omitempty"`
	// Pages are the files that hold its GPU state. If set, criu's images do not contain that
	// state.
	Pages *pages.Listing `json:"pages,omitempty"`
}

// Out is GPU memory that a library in a process has put into the process's own.
type Out struct {
	Generation uint64     `json:"generation,string"` // how the library calls this content
	Staging    proc.Range `json:"staging"`
}

// Encode returns what the file has.
func (m Manifest) Encode() ([]byte, error) { return manifestKind.Encode(m) }

// Write replaces the manifest of an image directory atomically.
func (m Manifest) Write(dir string) error {
	if err := manifestKind.Write(dir, m); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

// RemoveEarlier removes the manifest, the GPU state and other files of an earlier dump from an image directory that
// is used again.
func RemoveEarlier(dir string, others ...string) error {
	for _, name := range append(others, ManifestName) {
		err := os.Remove(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the leftovers of an earlier dump: %w", err)
		}
	}
	return Manifest{}.RemoveOtherPages(dir)
}

// ReadManifest reads and checks the manifest of an image directory. If there is none, the image
// holds no CUDA process and the error is [os.ErrNotExist], unless there is GPU state.
func ReadManifest(dir string) (Manifest, error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return Manifest{}, fmt.Errorf("manifest: %s is not an image directory", dir)
	}
	m, err := manifestKind.Read(dir)
	if errors.Is(err, os.ErrNotExist) {
		if state, _ := pages.Names(dir); len(state) > 0 {
			return Manifest{}, fault.New(manifestKind.Path(dir)+" is missing: the image is incomplete", manifestKind.Remedy)
		}
	}
	if err != nil {
		return Manifest{}, err
	}
	return m, nil
}

// HasInventory reports whether a directory has what criu writes at the end of a dump, or whether that cannot be told.
func HasInventory(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "inventory.img"))
	return !errors.Is(err, os.ErrNotExist)
}

// MatchImages refuses a manifest that names CUDA processes which criu's images beside it do not
// hold. It accepts a directory without criu's images, because a streamed dump leaves none
// there. It does not look for the other processes: one may have ended after it was parked.
func (m Manifest) MatchImages(dir string) error {
	if !HasInventory(dir) {
		return nil
	}
	pids := []int{m.RootPID}
	for _, p := range m.Processes {
		pids = append(pids, p.PID)
	}
	for _, pid := range pids {
		if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("core-%d.img", pid))); err != nil {
			return fmt.Errorf("the manifest names process %d, which is not in criu's images: it is damaged or belongs to another dump", pid)
		}
	}
	return nil
}

// Validate refuses a manifest that no dump can have written.
func (m Manifest) Validate() error {
	switch {
	case m.Version < 1 || m.Version > latestVersion:
		return fault.New(fmt.Sprintf("the manifest has version %d, but this cucriu reads versions 1 to %d", m.Version, latestVersion), "use the version of cucriu that made the image")
	case len(m.Scheduling) > 0 && m.Version < ScheduledVersion:
		return fmt.Errorf("it has thread scheduling data, but version %d", m.Version)
	case len(m.Settings) > 0 && m.Version < SettingsVersion || len(m.Settings) > maxProcesses:
		return fmt.Errorf("it has settings of %d processes, but version %d", len(m.Settings), m.Version)
	case m.DriverVersion == "" && len(m.Processes) > 0:
		return errors.New("no driver version")
	case !isPrintable(m.DriverVersion):
		return fmt.Errorf("the driver version is %q", m.DriverVersion)
	case m.RootPID <= 0:
		return fmt.Errorf("the root has the invalid pid %d", m.RootPID)
	case len(m.StoppedOthers) > maxProcesses:
		return fmt.Errorf("%d stopped processes", len(m.StoppedOthers))
	case len(m.Processes) == 0 && len(m.Parked) == 0 || len(m.Processes) > maxProcesses:
		return fmt.Errorf("%d processes", len(m.Processes))
	}
	for _, settings := range m.Settings {
		if err := settings.Validate(); err != nil {
			return err
		}
	}
	isParked := make(map[int]bool)
	for _, parked := range m.Parked {
		if err := parked.Validate(); err != nil {
			return fmt.Errorf("process %d: %w", parked.PID, err)
		}
		if isParked[parked.PID] {
			return fmt.Errorf("process %d is parked twice", parked.PID)
		}
		isParked[parked.PID] = true
	}
	pids := make(map[int]bool)
	if m.Base != "" && (m.Version < BasedVersion || !filepath.IsAbs(m.Base)) {
		return fmt.Errorf("it is based on %q, but has version %d", m.Base, m.Version)
	}
	for _, p := range m.Processes {
		if p.PID <= 0 || pids[p.PID] {
			return fmt.Errorf("process %d is listed twice or has an invalid pid", p.PID)
		}
		if !isPrintable(p.Name) {
			return fmt.Errorf("process %d has the invalid name %q", p.PID, p.Name)
		}
		pids[p.PID] = true
		if len(p.GPUs) == 0 || len(p.GPUs) > maxGPUs {
			return fmt.Errorf("process %d saw %d GPUs", p.PID, len(p.GPUs))
		}
		seen := make(map[cudackpt.UUID]bool)
		for _, gpu := range p.GPUs {
			if gpu.UUID == (cudackpt.UUID{}) || seen[gpu.UUID] {
				return fmt.Errorf("process %d saw %v twice or without a UUID", p.PID, gpu.UUID)
			}
			seen[gpu.UUID] = true
			if !isPrintable(gpu.Model) || !isPrintable(gpu.PCIBusID) {
				return fmt.Errorf("%v is a %q at %q", gpu.UUID, gpu.Model, gpu.PCIBusID)
			}
		}
		if p.Gated && m.Version < GatedVersion {
			return fmt.Errorf("the library in process %d holds it back, but the manifest has version %d", p.PID, m.Version)
		}
		if p.Pages != nil {
			if err := p.Pages.Validate(); err != nil {
				return fmt.Errorf("process %d: %w", p.PID, err)
			}
			if len(p.Pages.Origins) > 0 && m.Version < RewrittenVersion {
				return fmt.Errorf("process %d has pages of other dumps, but the manifest has version %d", p.PID, m.Version)
			}
		}
		for uuid, size := range p.MemoryBytes {
			if size > maxMemoryBytes {
				return fmt.Errorf("process %d holds %d bytes on %v", p.PID, size, uuid)
			}
			if !seen[uuid] {
				return fmt.Errorf("process %d holds memory on %v, which is not among the GPUs visible to it", p.PID, uuid)
			}
		}
	}
	return nil
}

// isPrintable reports whether text is safe to show on terminals and in logs.
func isPrintable(text string) bool { return text == proc.Printable(text) }

// Used counts the GPUs on which the processes held memory.
func (m Manifest) Used() int {
	used := make(map[cudackpt.UUID]bool)
	for _, p := range m.Processes {
		for gpu, bytes := range p.MemoryBytes {
			if bytes > 0 {
				used[gpu] = true
			}
		}
	}
	return len(used)
}

// Needs says how many GPUs a restore needs, and how many of them the job used.
func (m Manifest) Needs() string {
	return fmt.Sprintf("a restore needs %s, and the job uses %d", units.Count(len(m.GPUs()), "visible GPU"), m.Used())
}

// GPUs are all GPUs that the processes could see, in the order of the first that saw each.
func (m Manifest) GPUs() []cudackpt.GPU {
	var all []cudackpt.GPU
	for _, p := range m.Processes {
		all = cudackpt.Union(all, p.GPUs)
	}
	return all
}
