package preflight

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
)

// A process that has peer access between two GPUs, and one physical allocation of
// 512 MiB or more on either, is locked and checkpointed without a complaint, and
// can then never be restored: INVALID_VALUE, and 304 from the second try on (measured
// on driver 580; smaller allocations come back whole). Where the kernel module can be asked (holdings.go),
// it says so. Elsewhere, that a process has a context on two GPUs can be seen: NVML
// lists it on both. Such a process is refused there unless something shows that it
// has no such allocation.

// peerLeast is the least allocation that peer access cannot be restored for, in
// bytes.
const peerLeast = 512 << 20

// The frameworks that are told apart by the libraries that they map.
const (
	pyTorch = "PyTorch"
	jax     = "JAX"
)

var frameworkFiles = map[string]*regexp.Regexp{
	pyTorch: regexp.MustCompile(`/(libtorch|libc10)[^/]*\.so[^/]*$`),
	jax:     regexp.MustCompile(`/(jaxlib|jax_plugins)/.*\.so[^/]*$|/(xla_extension|xla_cuda_plugin|libjax_common|_jax)[^/]*\.so[^/]*$`),
}

// peerUse is what shows of a process that may have peer access between GPUs.
type peerUse struct {
	pid  int
	name string
	// listed is what NVML says that the process holds on each GPU: on all on which
	// it has a context. Empty: NVML does not list the process.
	listed map[cudackpt.UUID]uint64
	models map[cudackpt.UUID]string // of the GPUs
	// mapped are the device nodes of the GPUs on which, as its mappings show, it has
	// a context.
	mapped      []string
	frameworks  []string
	environment []string // as it was started
	// newName says that its PyTorch knows the setting of the allocator by the name
	// PYTORCH_ALLOC_CONF: older ones do not read that.
	newName bool
	// holdings is what the kernel module says that it has; nil if it says nothing.
	holdings *nvrm.Holdings
	member   *Process
}

// contexts is on how many GPUs the process has a context.
func (u peerUse) contexts() int {
	if len(u.listed) > 0 {
		return len(u.listed)
	}
	// NVML lists no process without a context, and in some containers and virtual
	// machines none at all.
	return len(u.mapped)
}

// peerFindings judges processes.
func peerFindings(uses []peerUse) Findings {
	var findings Findings
	for _, u := range uses {
		if u.holdings != nil {
			findings = append(findings, holdingFindings(u.member, *u.holdings, u.contexts(), u.remedy())...)
			continue
		}
		if u.contexts() < 2 || u.harmless() {
			continue
		}
		findings = append(findings, Finding{
			Name: FindingPeerMemory, Severity: SeverityError, PID: u.pid, Process: u.name,
			Message: fmt.Sprintf("uses %d GPUs (%s), and may have peer access between them: the driver would checkpoint that, "+
				"and could never restore it if one allocation takes 512 MiB or more", u.contexts(), u.describe()),
			Remedy: u.remedy() + "; override this if it has no peer access (it cannot be seen from outside), or no allocation of that size",
		})
	}
	return findings
}

func (u peerUse) describe() string {
	if len(u.listed) == 0 {
		return strings.Join(u.mapped, ", ")
	}
	var parts []string
	for _, gpu := range slices.SortedFunc(maps.Keys(u.listed), cudackpt.UUID.Compare) {
		size := "an unknown amount"
		if bytes := u.listed[gpu]; bytes != cudackpt.UnknownMemory {
			size = mib(bytes)
		}
		parts = append(parts, size+" on "+gpu.String())
	}
	return strings.Join(parts, ", ")
}

// harmless reports whether something shows that the process comes back.
func (u peerUse) harmless() bool {
	if u.usesPools() {
		return false // of which peer access is lost whatever their size
	}
	return u.expandable() || u.small()
}

// usesPools reports whether the process was told to allocate from the driver's
// memory pools.
func (u peerUse) usesPools() bool {
	for _, name := range []string{pyTorchOldName, pyTorchNewName} {
		if value, _ := getenv(u.environment, name); allocatorSetting(value, "backend") == "cudaMallocAsync" {
			return true
		}
	}
	xla, _ := getenv(u.environment, "XLA_PYTHON_CLIENT_ALLOCATOR")
	tensorFlow, _ := getenv(u.environment, "TF_GPU_ALLOCATOR")
	return xla == "cuda_async" || tensorFlow == "cuda_malloc_async"
}

const (
	pyTorchOldName = "PYTORCH_CUDA_ALLOC_CONF" // read by every version
	pyTorchNewName = "PYTORCH_ALLOC_CONF"      // where it is known, it comes first
)

// expandable reports whether PyTorch, and nothing beside it, allocates the
// process's memory, and was told to make it of handles of 20 MiB.
func (u peerUse) expandable() bool {
	if !slices.Equal(u.frameworks, []string{pyTorch}) {
		return false
	}
	is := func(value string) bool { return allocatorSetting(value, "expandable_segments") == "True" }
	older, hasOlder := getenv(u.environment, pyTorchOldName)
	newer, hasNewer := getenv(u.environment, pyTorchNewName)
	switch {
	case hasNewer && hasOlder:
		return is(newer) && is(older)
	case hasNewer:
		return u.newName && is(newer)
	}
	return is(older)
}

// small reports whether the process holds too little on each GPU for such an
// allocation beside its context.
func (u peerUse) small() bool {
	if len(u.listed) == 0 {
		return false
	}
	for gpu, bytes := range u.listed {
		if bytes >= peerLeast+contextLeast(u.models[gpu]) { // UnknownMemory as well
			return false
		}
	}
	return true
}

// contextLeast is the least that a context takes of a GPU of this model, in bytes.
// Of others it is not known, and nothing is taken off for it. Measured on driver
// 580: 518 MiB, and 254 with the stack of its kernels limited to nothing.
func contextLeast(model string) uint64 {
	switch model {
	case "NVIDIA H100 80GB HBM3", "NVIDIA H200":
		return 240 << 20
	}
	return 0
}

// remedy names the setting of the framework that the process uses.
func (u peerUse) remedy() string {
	const oneGPU = "CUDA_VISIBLE_DEVICES naming one GPU for each process"
	switch {
	case slices.Contains(u.frameworks, jax):
		return "start it with " + oneGPU + "; with several, XLA_PYTHON_CLIENT_PREALLOCATE=false is enough only while no array takes 512 MiB"
	case slices.Contains(u.frameworks, pyTorch):
		return "start it with " + pyTorchOldName + "=expandable_segments:True, or with " + oneGPU
	}
	return "start it with " + oneGPU + ", or let it allocate in parts below 512 MiB"
}

// gpuNode is the device node of a GPU; those of /dev/nvidiactl and its like are
// mapped by every process that uses CUDA.
var gpuNode = regexp.MustCompile(`/dev/nvidia[0-9]+$`)

// contextMapping is how much of a GPU's device node a process with a context on it
// maps at least, in bytes. Measured on driver 580: 128 KiB after cuInit, of each GPU
// that it can see, and 2 MiB more with a context. Peer access, and memory, change
// nothing in the mappings, nor in the descriptors and threads.
const contextMapping = 1 << 20

// contextNodes are the device nodes of the GPUs on which a process with these
// mappings has a context.
func contextNodes(mappings []*procfs.ProcMap) []string {
	sizes := make(map[string]uint64)
	for _, m := range mappings {
		if path := strings.TrimSuffix(m.Pathname, " (deleted)"); gpuNode.MatchString(path) {
			sizes[path] += uint64(m.EndAddr - m.StartAddr)
		}
	}
	maps.DeleteFunc(sizes, func(_ string, size uint64) bool { return size < contextMapping })
	return slices.Sorted(maps.Keys(sizes))
}

// peerUseOf looks at a process of which NVML says what it holds.
func peerUseOf(m *Process, listed map[cudackpt.UUID]uint64, holdings *nvrm.Holdings) (peerUse, error) {
	u := peerUse{pid: m.PID, name: m.Name, listed: listed, holdings: holdings, member: m}
	if len(m.GPUs) < 2 || len(listed) == 1 {
		return u, nil
	}
	mappings, err := proc.Mappings(m.PID)
	if err != nil {
		return u, err
	}
	process, err := procfs.NewProc(m.PID)
	if err == nil {
		u.environment, err = process.Environ()
	}
	if err != nil {
		return u, proc.GoneOr(m.PID, err)
	}
	_, asksNewName := getenv(u.environment, pyTorchNewName)
	frameworks := make(set)
	for _, mapping := range mappings {
		path := strings.TrimSuffix(mapping.Pathname, " (deleted)")
		for name, file := range frameworkFiles {
			if file.MatchString(path) {
				frameworks[name] = true
			}
		}
		if asksNewName && !u.newName && strings.HasPrefix(filepath.Base(path), "libc10") {
			u.newName = fileMentions(m.PID, mapping, pyTorchNewName)
		}
	}
	u.mapped, u.frameworks = contextNodes(mappings), frameworks.sorted()
	u.models = make(map[cudackpt.UUID]string)
	for _, gpu := range m.GPUs {
		u.models[gpu.UUID] = gpu.Model
	}
	return u, nil
}

// Peers looks for what the driver would checkpoint and never restore among processes, of
// which some may have ended; listed is what NVML lists of each. The kernel module is
// asked where it is understood: about those on several GPUs only, if quick is set,
// which saves 10 to 20 ms for each of the others.
func Peers(driver *cudackpt.Driver, processes []Process, listed []map[cudackpt.UUID]uint64, quick bool) (Findings, error) {
	holdings := holdingsOf(driver, processes, listed, quick)
	var uses []peerUse
	for i := range processes {
		use, err := peerUseOf(&processes[i], listed[i], holdings[i])
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		uses = append(uses, use)
	}
	return peerFindings(uses), nil
}
