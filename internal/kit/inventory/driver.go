package inventory

import (
	"regexp"
	"slices"
	"strconv"

	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/proc"
)

// DriverUse is what a process holds of the NVIDIA driver.
type DriverUse struct {
	Libcuda     bool         // a libcuda is mapped; without it this cannot be a CUDA process
	Devices     []string     // device files, open or mapped
	Descriptors []int        // of device files
	Mappings    []proc.Range // of device files; neighbours are joined
	Openers     []string     // mapped libraries of NVIDIA's, besides libcuda, that open device files by themselves
	Hwloc       bool         // hwloc is mapped, which looks for GPUs
}

var (
	openerFile = regexp.MustCompile(`/lib(nvidia-(opencl|glcore|eglcore|cfg|fbc)|(GLX|EGL|vdpau)_nvidia)\.so[^/]*$`)
	openCLFile = regexp.MustCompile(`/libnvidia-opencl\.so[^/]*$`)
	hwlocFile  = regexp.MustCompile(`/(hwloc_opencl|libhwloc)\.so[^/]*$`)
)

// Driver returns what the process holds of the driver.
func (p *Process) Driver() DriverUse {
	use, _ := p.driver.get(func() (DriverUse, error) { return p.driverUse(), nil })
	return use
}

func (p *Process) driverUse() DriverUse {
	u := DriverUse{Libcuda: p.mapsLibcuda(), Openers: p.MappedMatching(openerFile), Hwloc: p.MapsAny(hwlocFile)}
	for _, m := range p.Mapped() {
		if !m.IsDriverDevice() {
			continue
		}
		u.Devices = append(u.Devices, m.Name())
		if n := len(u.Mappings); n > 0 && u.Mappings[n-1].End == m.Start {
			u.Mappings[n-1].End = m.End
		} else {
			u.Mappings = append(u.Mappings, m.Range)
		}
	}
	for _, f := range p.Open() {
		if fd, err := strconv.Atoi(f.Number); err == nil && f.IsDriverDevice() {
			u.Devices, u.Descriptors = append(u.Devices, f.Name()), append(u.Descriptors, fd)
		}
	}
	slices.Sort(u.Devices)
	u.Devices = slices.Compact(u.Devices)
	return u
}

// LookedByOpenCL reports whether hwloc (which Open MPI uses, and with that mpi4py, and with that
// PyTorch Lightning) may have looked for GPUs: it asks OpenCL, which then keeps device files
// open permanently.
func (u DriverUse) LookedByOpenCL() bool {
	isOther := func(path string) bool { return !openCLFile.MatchString(path) }
	return u.Hwloc && len(u.Openers) > 0 && !slices.ContainsFunc(u.Openers, isOther)
}

func (p *Process) mapsLibcuda() bool { return slices.ContainsFunc(p.MappedNames(), drivers.IsLibcuda) }

// MapsLibcuda reports whether a process has a libcuda mapped. Without it, it cannot use CUDA.
func MapsLibcuda(pid int) (bool, error) {
	p := &Process{PID: pid}
	_, err := p.mapped.get(p.readMappings)
	return p.mapsLibcuda(), err
}
