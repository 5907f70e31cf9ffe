package job

import (
	"fmt"
	"slices"
	"strings"
)

// Setting is something in a job's environment that keeps a framework from using what a checkpoint
// cannot bring back.
type Setting struct {
	Name string
	// Variables are set unless the environment has them already.
	Variables []string
	// What it does, and for whom.
	What string
	// Costs says that it makes some jobs slower, so it is set only if it is asked for.
	Costs bool
	// severalGPUs says that it is of use only to a job that sees more than one GPU.
	severalGPUs bool
	// sharing says that it is of use only where the library in the job takes down what processes share.
	sharing bool
}

// Settings are all that are known.
func Settings() []Setting {
	return []Setting{
		{
			Name: "torch-segments", Variables: []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, severalGPUs: true,
			What: "PyTorch allocates in small pieces, so that a process that copies between two GPUs can be restored",
		},
		{
			Name: "go-no-mptcp", Variables: []string{"GODEBUG=multipathtcp=0"},
			What: "Go programs listen by TCP and not by MPTCP, which criu cannot dump",
		},
		{
			Name: "nccl-no-ras", Variables: []string{"NCCL_RAS_ENABLE=0"},
			What: "NCCL takes no port of the host for its diagnostics, which another job may have when this one resumes",
		},
		{
			Name: "nccl-served", Variables: []string{"NCCL_NVLS_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=0"}, severalGPUs: true, sharing: true,
			What: "NCCL shares memory between processes only in ways that can be taken down and put up again",
		},
		{
			Name: "nccl-no-p2p", Variables: []string{"NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1"}, Costs: true,
			What: "NCCL shares no device memory between processes, so that a job of several ranks can be restored; slower than NVLink",
		},
		{
			Name: "nccl-no-rdma", Variables: []string{"NCCL_IB_DISABLE=1"}, Costs: true,
			What: "NCCL opens no InfiniBand device, which criu cannot dump; slower between hosts",
		},
		{
			Name: "jax-no-preallocation", Variables: []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, Costs: true,
			What: "JAX allocates as needed, not most of the GPU at once; for JAX on several GPUs",
		},
	}
}

// Choice is which settings a user wants beside the usual ones, and which of those not.
type Choice struct {
	With, Without []string
	// Sharing says that the library in the job takes down what processes share, and puts it up again.
	Sharing bool
}

// CheckSettings refuses names that are not known.
func CheckSettings(names ...string) error {
	var known []string
	for _, s := range Settings() {
		known = append(known, s.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown setting %q: known settings are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// Apply adds the settings to an environment, and returns what to tell the user.
func (c Choice) Apply(env []string, gpus int) (_ []string, notes []string) {
	for _, s := range Settings() {
		asked := slices.Contains(c.With, s.Name)
		if slices.Contains(c.Without, s.Name) || !asked && (s.Costs || s.severalGPUs && gpus < 2 || s.sharing && !c.Sharing) {
			continue
		}
		for _, variable := range s.Variables {
			name, _, _ := strings.Cut(variable, "=")
			if has := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"=") }); has >= 0 {
				if env[has] != variable {
					notes = append(notes, fmt.Sprintf("you set %s yourself, so the setting %s is left out (%s)", env[has], s.Name, s.What))
				}
				continue
			}
			env = append(env, variable)
			notes = append(notes, fmt.Sprintf("%s is set (%s; --no-setting %s leaves it out)", variable, s.What, s.Name))
		}
	}
	return env, notes
}
