package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/drivers"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/nvrm"
	"cucriu/internal/kit/proc"
)

// If a process has peer access between two GPUs, and one physical allocation of 512 MiB or more
// on either, the driver locks and checkpoints it without a complaint. The process can then
// never be restored: the restore answers INVALID_VALUE, and 304 from the second try on
// (measured on driver 580; smaller allocations are restored whole). Where the kernel module can be
// asked, it says whether this is so. Elsewhere one can see only that a process
// has a context on two GPUs: NVML lists it on both. There such a process is refused.

// The frameworks are told apart by the libraries that a process maps.
var (
	pyTorchFile = regexp.MustCompile(`/(libtorch|libc10)[^/]*\.so[^/]*$`)
	jaxFile     = regexp.MustCompile(`/(jaxlib|jax_plugins)/.*\.so[^/]*$|/(xla_extension|xla_cuda_plugin|libjax_common|_jax)[^/]*\.so[^/]*$`)
)

// peerUse is what can be seen of a process that may have peer access between GPUs.
type peerUse struct {
	of *Process
	// mapped are the device nodes of the GPUs on which the process has a context, judged by its
	// mappings.
	mapped       []string
	pyTorch, jax bool // it uses these frameworks
	// holdings is what the kernel module says that the process has; nil if it says nothing.
	holdings *nvrm.Holdings
	driver   drivers.Facts
}

// peersOf judges processes of which some may have ended.
func (s *snapshot) peersOf(processes []Process, kernel kernelAnswer) (preflight.Findings, error) {
	findings := notLookedFor(processes, kernel)
	for i := range processes {
		m := &processes[i]
		u := peerUse{of: m, holdings: kernel.holdings[m.PID], driver: kernel.driver}
		if h := u.holdings; h != nil && u.driver.Module == drivers.Measured &&
			h.Fabric+h.FabricShared+h.Pools == 0 && (h.HostNUMA == 0 || len(u.of.Listed) > 1) {
			continue
		}
		if len(m.GPUs) > 1 && len(u.of.Listed) != 1 {
			p, err := s.Process(m.PID)
			if errors.Is(err, proc.ErrGone) {
				continue
			}
			if err != nil {
				return nil, err
			}
			u.lookAt(p)
		}
		findings = append(findings, u.findings()...)
	}
	return findings, nil
}

// notLookedFor warns of processes that may have memory on a NUMA node of the host, because the kernel module was not asked
// for it or did not say. Of those with contexts on several GPUs, it cannot be told anyway.
func notLookedFor(processes []Process, kernel kernelAnswer) preflight.Findings {
	for i, p := range processes {
		if kernel.holdings[p.PID] == nil && len(p.Listed) < 2 && !holdsNothing(processes, i) && unix.Kill(p.PID, 0) == nil {
			return preflight.Findings{p.about(preflight.Warning(preflight.FindingHostNUMA,
				fmt.Sprintf("it was not looked for whether this process, or another one of the tree, has driver memory on a NUMA node "+
					"of the host (CU_MEM_LOCATION_TYPE_HOST_NUMA), which a restore would lose: %v",
					cmp.Or(kernel.unknown, nvrm.ErrUnknown)), ""))}
		}
	}
	return nil
}

// lookAt looks at the process for what the kernel module and NVML do not tell.
func (u *peerUse) lookAt(p *inventory.Process) {
	u.pyTorch, u.jax = p.MapsAny(pyTorchFile), p.MapsAny(jaxFile)
	u.mapped = contextNodes(p.Mapped())
}

// contexts returns on how many GPUs the process has a context. NVML lists only processes with a
// context. In some containers and virtual machines it lists none at all.
func (u peerUse) contexts() int {
	if len(u.of.Listed) > 0 {
		return len(u.of.Listed)
	}
	return len(u.mapped)
}

// findings judges a process that may have peer access.
func (u peerUse) findings() preflight.Findings {
	if u.holdings != nil {
		found := u.holdingFindings()
		isLost := found.Has(preflight.FindingPeerMemory) && len(found.Of(preflight.SeverityError)) > 0
		if u.driver.Module == drivers.Measured || isLost {
			return found
		}
		u.holdings = nil
		return append(found, u.findings()...)
	}
	if u.contexts() < 2 {
		return nil
	}
	parts := u.mapped
	if len(u.of.Listed) > 0 {
		parts = nil
		for _, gpu := range slices.SortedFunc(maps.Keys(u.of.Listed), cudackpt.UUID.Compare) {
			size := "an unknown amount"
			if bytes := u.of.Listed[gpu]; bytes != cudackpt.UnknownMemory {
				size = mib(bytes)
			}
			parts = append(parts, size+" on "+gpu.String())
		}
	}
	return preflight.Findings{u.of.about(preflight.New(preflight.FindingPeerMemory, fmt.Sprintf("uses %d GPUs (%s), "+
		"and may have peer access between them: the driver would checkpoint that, and could never restore it if one allocation takes %s or more", u.contexts(), strings.Join(parts, ", "), u.least()),
		"start it with "+oneGPU+"; override this if it has no peer access (which cannot be detected from outside), "+
			"or no allocation of that size (PyTorch with expandable_segments:True has none)"))}
}

// least is the size from which on an allocation cannot be restored with peer access.
func (u peerUse) least() string { return mib(u.driver.FabricLeast) }

// holdingFindings judges what the kernel module says about a process.
func (u peerUse) holdingFindings() preflight.Findings {
	var findings preflight.Findings
	add := func(f preflight.Finding) { findings = append(findings, u.of.about(f)) }
	h := u.holdings
	if h.FabricShared > 0 {
		add(preflight.New(preflight.FindingPeerMemory, "has an allocation of "+u.least()+" or more that another GPU accesses: "+
			"the driver would checkpoint it, and could never restore it", u.advice(true)))
	}
	if h.Pools > 0 {
		add(preflight.New(preflight.FindingPeerMemory, "has a memory pool that another GPU accesses: a restore would lose that access without an error, and the next access would fail", u.advice(false)))
	}
	if h.HostNUMA > 0 && u.contexts() == 1 { // with contexts on two GPUs the driver has 4 or 5 duplicates of its own
		has := "has"
		if u.driver.Module != drivers.Measured {
			has = "seems, by what was measured on another driver, to have"
		}
		add(preflight.New(preflight.FindingHostNUMA, has+" driver memory on a NUMA node of the host (CU_MEM_LOCATION_TYPE_HOST_NUMA): "+
			"the driver would checkpoint it, and could never restore it", ""))
	}
	if h.FabricShared == 0 && h.Fabric > 0 && len(u.of.GPUs) > 1 {
		add(preflight.Warning(preflight.FindingPeerMemory, "has allocations of "+u.least()+" or more: "+
			"after a restore no other GPU can be given access to them (a first copy between two GPUs fails)", u.advice(true)))
	}
	return findings
}

const oneGPU = "CUDA_VISIBLE_DEVICES naming one GPU for each process"

// advice names the setting of the framework that the process uses, and the library of cucriu run --dir where
// that would make other memory of what was found.
func (u peerUse) advice(guest bool) string {
	start := "start it "
	if guest {
		start += "by cucriu run --dir, or "
	}
	switch {
	case u.jax:
		return start + "with " + oneGPU + "; with several, XLA_PYTHON_CLIENT_PREALLOCATE=false is enough only while no array takes " + u.least()
	case u.pyTorch:
		return start + "with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or with " + oneGPU
	}
	return start + "with " + oneGPU + ", or let it allocate in parts below " + u.least()
}

// contextNodes returns the device nodes of the GPUs on which a process with these mappings has
// a context.
func contextNodes(mappings []inventory.Mapping) []string {
	sizes := make(map[string]uint64)
	for _, m := range mappings {
		if name := m.Name(); filepath.Base(filepath.Dir(name)) == "dev" && drivers.GPUNode.MatchString(filepath.Base(name)) {
			sizes[name] += m.Size()
		}
	}
	maps.DeleteFunc(sizes, func(_ string, size uint64) bool { return size < drivers.ContextMapping })
	return slices.Sorted(maps.Keys(sizes))
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
