package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cucriu/cudackpt"
	"cucriu/internal/nvrm"
	"cucriu/internal/proc"
)

// If a process has peer access between two GPUs, and one physical allocation of 512 MiB or more
// on either, the driver locks and checkpoints it without a complaint. The process can then
// never be restored: the restore answers INVALID_VALUE, and 304 from the second try on
// (measured on driver 580; smaller allocations come back whole). Where the kernel module can be
// asked (holdings.go), it says whether this is so. Elsewhere one can see only that a process
// has a context on two GPUs: NVML lists it on both. There such a process is refused, unless
// something shows that it has no such allocation.

// peerLeast is the size from which on an allocation with peer access cannot be restored, in
// bytes.
const peerLeast = 512 << 20

// The frameworks. They are told apart by the libraries that a process maps.
const (
	pyTorch = "PyTorch"
	jax     = "JAX"
)

var frameworkFiles = map[string]*regexp.Regexp{
	pyTorch: regexp.MustCompile(`/(libtorch|libc10)[^/]*\.so[^/]*$`),
	jax:     regexp.MustCompile(`/(jaxlib|jax_plugins)/.*\.so[^/]*$|/(xla_extension|xla_cuda_plugin|libjax_common|_jax)[^/]*\.so[^/]*$`),
}

// peerUse is what can be seen of a process that may have peer access between GPUs.
type peerUse struct {
	of *Process
	// listed is what NVML says that the process holds on each GPU on which it has a context.
	// Empty if NVML does not list the process.
	listed map[cudackpt.UUID]uint64
	models map[cudackpt.UUID]string // of the GPUs
	// mapped are the device nodes of the GPUs on which the process has a context, judged by its
	// mappings.
	mapped      []string
	frameworks  []string
	environment []string // as the process was started
	// newName says that its PyTorch reads the allocator's settings from PYTORCH_ALLOC_CONF too.
	// Older versions do not know that name.
	newName bool
	// holdings is what the kernel module says that the process has; nil if it says nothing.
	holdings *nvrm.Holdings
}

// contexts returns on how many GPUs the process has a context.
func (u peerUse) contexts() int {
	if len(u.listed) > 0 {
		return len(u.listed)
	}
	// NVML lists only processes with a context. In some containers and virtual machines it
	// lists none at all.
	return len(u.mapped)
}

// peerFindings judges processes that may have peer access.
func peerFindings(uses []peerUse) Findings {
	var findings Findings
	for _, u := range uses {
		if u.holdings != nil {
			findings = append(findings, holdingFindings(u.of, *u.holdings, u.contexts(), u.advice())...)
			continue
		}
		if u.contexts() < 2 || u.harmless() {
			continue
		}
		findings = append(findings, u.of.about(refuse(FindingPeerMemory, fmt.Sprintf("uses %d GPUs (%s), and may have peer access between them: the driver would checkpoint that, "+
			"and could never restore it if one allocation takes 512 MiB or more", u.contexts(), u.describe()),
			u.advice()+"; override this if it has no peer access (it cannot be seen from outside), or no allocation of that size")))
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
		return false // they lose peer access whatever their size
	}
	return u.expandable() || u.small()
}

// usesPools reports whether the process was told to allocate from the driver's memory pools.
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
	pyTorchNewName = "PYTORCH_ALLOC_CONF"      // takes precedence in versions that know it
)

// expandable reports whether PyTorch is the only framework that allocates memory in the
// process, and was told to allocate it in handles of 20 MiB.
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

// small reports whether the process holds so little on each GPU that, beside its context, there
// is no room for such an allocation.
func (u peerUse) small() bool {
	if len(u.listed) == 0 {
		return false
	}
	for gpu, bytes := range u.listed {
		if bytes >= peerLeast+contextLeast(u.models[gpu]) { // true for UnknownMemory as well
			return false
		}
	}
	return true
}

// contextLeast is the least that a context takes of a GPU of this model, in bytes. For other
// models this is not known, so nothing is subtracted. Measured on driver 580: 518 MiB, and 254
// MiB with the stack of its kernels limited to nothing.
func contextLeast(model string) uint64 {
	switch model {
	case "NVIDIA H100 80GB HBM3", "NVIDIA H200":
		return 240 << 20
	}
	return 0
}

// advice names the setting of the framework that the process uses.
func (u peerUse) advice() string {
	const oneGPU = "CUDA_VISIBLE_DEVICES naming one GPU for each process"
	switch {
	case slices.Contains(u.frameworks, jax):
		return "start it with " + oneGPU + "; with several, XLA_PYTHON_CLIENT_PREALLOCATE=false is enough only while no array takes 512 MiB"
	case slices.Contains(u.frameworks, pyTorch):
		return "start it with " + pyTorchOldName + "=expandable_segments:True, or with " + oneGPU
	}
	return "start it with " + oneGPU + ", or let it allocate in parts below 512 MiB"
}

// gpuNode matches the device node of a GPU. It does not match /dev/nvidiactl and the like,
// which every process that uses CUDA maps.
var gpuNode = regexp.MustCompile(`/dev/nvidia[0-9]+$`)

// contextMapping is the least that a process maps of the device node of a GPU on which it has a
// context, in bytes. Measured on driver 580: cuInit maps 128 KiB for each GPU that the process
// can see, and a context 2 MiB more. Peer access and memory change nothing in the mappings, nor
// in the descriptors and threads.
const contextMapping = 1 << 20

// contextNodes returns the device nodes of the GPUs on which a process with these mappings has
// a context.
func contextNodes(mappings []mapping) []string {
	sizes := make(map[string]uint64)
	for _, m := range mappings {
		if name := m.name(); gpuNode.MatchString(name) {
			sizes[name] += m.Size()
		}
	}
	maps.DeleteFunc(sizes, func(_ string, size uint64) bool { return size < contextMapping })
	return slices.Sorted(maps.Keys(sizes))
}

// peerUseOf looks at a CUDA process. listed is what NVML says that it holds.
func (t *tree) peerUseOf(m *Process, listed map[cudackpt.UUID]uint64, holdings *nvrm.Holdings) (peerUse, error) {
	u := peerUse{of: m, listed: listed, holdings: holdings}
	if len(m.GPUs) < 2 || len(listed) == 1 {
		return u, nil
	}
	l, err := t.look(m.PID)
	if err == nil {
		u.environment, err = l.environment()
	}
	if err != nil {
		return u, err
	}
	for name, file := range frameworkFiles {
		if len(l.matching(file)) > 0 {
			u.frameworks = append(u.frameworks, name)
		}
	}
	slices.Sort(u.frameworks)
	if _, asksNewName := getenv(u.environment, pyTorchNewName); asksNewName {
		u.newName = slices.ContainsFunc(l.mapped, func(m mapping) bool {
			return strings.HasPrefix(filepath.Base(m.name()), "libc10") && m.contains(pyTorchNewName)
		})
	}
	u.mapped = contextNodes(l.mapped)
	u.models = make(map[cudackpt.UUID]string)
	for _, gpu := range m.GPUs {
		u.models[gpu.UUID] = gpu.Model
	}
	return u, nil
}

// peersOf judges processes of which some may have ended.
func (t *tree) peersOf(processes []Process, listed []map[cudackpt.UUID]uint64, holdings []*nvrm.Holdings) (Findings, error) {
	var uses []peerUse
	for i := range processes {
		use, err := t.peerUseOf(&processes[i], listed[i], holdings[i])
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

// allocatorSetting returns the value of a key in a setting such as
// "expandable_segments:True,max_split_size_mb:128". PyTorch uses the last one.
func allocatorSetting(text, key string) string {
	var found string
	for setting := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(setting, ":"); ok && strings.TrimSpace(name) == key {
			found = strings.TrimSpace(value)
		}
	}
	return found
}

// getenv finds a variable in an environment as the C function does: the first one counts.
func getenv(environment []string, name string) (value string, found bool) {
	for _, variable := range environment {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value, true
		}
	}
	return "", false
}

// contains reports whether a file contains a text. It returns false for a file that cannot be read.
func (f *file) contains(text string) bool {
	file, err := os.Open(f.path())
	if err != nil {
		return false
	}
	defer file.Close()
	const most = 64 << 20 // PyTorch's libraries have a few MiB
	content, err := io.ReadAll(io.LimitReader(file, most))
	return err == nil && bytes.Contains(content, []byte(text))
}
