package image

import (
	"time"

	"cucriu/cudackpt"
	"cucriu/internal/kit/imagedir"
)

// Manifest says which CUDA processes an image holds, and what they used.
type Manifest struct {
	Created       time.Time
	DriverVersion string // of the kernel driver, such as 580.159.04. Only a host that has it can restore the image
	RootPID       int    // of the dumped tree, as in the image
	Processes     []Process
}

// Process is a CUDA process of an image.
type Process struct {
	PID  int // as in the image: the pid in its innermost pid namespace
	Name string
	// Stopped says that the process was already stopped before the dump. It stays stopped after the restore.
	Stopped bool
	// GPUs are all GPUs that the process could see, used or not, in the driver's order.
	GPUs []cudackpt.GPU
	// MemoryBytes is what the process held on each GPU. A GPU that is not in the map was not used.
	MemoryBytes map[cudackpt.UUID]uint64
}

// Manifest reads and checks the manifest. If there is none, the image holds no CUDA process and the error is
// [os.ErrNotExist]. The image itself is not read: see [Image.Verify].
func (i *Image) Manifest() (Manifest, error) {
	read, err := i.of.Manifest()
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Created: read.Created, DriverVersion: read.DriverVersion, RootPID: read.RootPID}
	for _, p := range read.Processes {
		m.Processes = append(m.Processes, Process{p.PID, p.Name, p.Stopped, p.GPUs, p.MemoryBytes})
	}
	return m, nil
}

// Validate refuses a manifest that no dump can have written.
func (m Manifest) Validate() error {
	all := imagedir.Manifest{Version: imagedir.ManifestVersion, DriverVersion: m.DriverVersion, RootPID: m.RootPID}
	for _, p := range m.Processes {
		all.Processes = append(all.Processes, imagedir.Process{PID: p.PID, Name: p.Name, GPUs: p.GPUs, MemoryBytes: p.MemoryBytes})
	}
	return all.Validate()
}

// GPUs are all GPUs that the processes could see, in the order of the first that saw each: the order in which a rule
// of the GPU map counts them.
func (m Manifest) GPUs() []cudackpt.GPU {
	var all []cudackpt.GPU
	for _, p := range m.Processes {
		all = cudackpt.Union(all, p.GPUs)
	}
	return all
}
