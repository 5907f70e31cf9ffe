package job

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/units"
)

// visibleDevices is the variable by which schedulers tell a job its GPUs.
const visibleDevices = "CUDA_VISIBLE_DEVICES"

// GPUs are which GPUs of the host a job gets. The driver checkpoints a process with all GPUs
// whose device nodes it sees, and restores it only where there are as many. So the job's sandbox
// shows those that this run was given, and no others.
type GPUs struct {
	Visible []cudackpt.GPU // in the order of the PCI bus
	order   []cudackpt.GPU // in that of CUDA_VISIBLE_DEVICES
	Hidden  []string       // device nodes
	named   string         // CUDA_VISIBLE_DEVICES
}

// GivenGPUs finds out which GPUs this run was given: those of CUDA_VISIBLE_DEVICES, else all,
// without those that the control group of this run denies.
func GivenGPUs(hook *hooks.Hook, env []string, adopted bool) (GPUs, error) {
	driver, err := hook.OpenDriver()
	if err != nil {
		return GPUs{}, nil // a job without CUDA
	}
	host, err := driver.HostGPUs()
	if err != nil {
		return GPUs{}, nil
	}
	chosen := host
	value, is := lookup(env, visibleDevices)
	if is {
		if chosen, err = chooseGPUs(host, value); err != nil {
			return GPUs{}, fmt.Errorf("%s=%s: %w", visibleDevices, value, err)
		}
	}
	if adopted { // the job has seen all of them
		return GPUs{Visible: host, order: host}, nil
	}
	g := GPUs{order: chosen, named: value}
	for _, gpu := range host {
		node := filepath.Join(hook.Config.Driver.Root, "dev", "nvidia"+strconv.Itoa(gpu.Minor))
		if slices.Contains(chosen, gpu) && !denied(node) {
			g.Visible = append(g.Visible, gpu)
		} else {
			g.Hidden = append(g.Hidden, node)
		}
	}
	return g, nil
}

// Require refuses to resume a job that could see more GPUs if CUDA_VISIBLE_DEVICES hides some from it. Without that
// variable, the restore says what is missing.
func (g GPUs) Require(seen int) error {
	host := len(g.Visible) + len(g.Hidden)
	if len(g.Visible) >= seen || len(g.order) == host {
		return nil
	}
	cause := fmt.Sprintf("the job could see %s, and %s=%s shows it %d of the %d of this host",
		units.Count(seen, "GPU"), visibleDevices, g.named, len(g.Visible), host)
	return fault.New(cause, fmt.Sprintf("let it name %d that cucriu gpus lists, by index or UUID", seen))
}

// denied reports whether a device cannot be opened because a control group forbids it.
func denied(node string) bool {
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// chooseGPUs finds the GPUs that CUDA_VISIBLE_DEVICES names: by their index, in the order of the
// PCI bus, or by UUID. As in CUDA, the first name that is wrong ends the list.
func chooseGPUs(host []cudackpt.GPU, value string) ([]cudackpt.GPU, error) {
	var chosen []cudackpt.GPU
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "MIG-") {
			return nil, errors.New("a MIG instance cannot be checkpointed")
		}
		i, err := strconv.Atoi(name)
		if err != nil {
			i = onlyWithPrefix(host, name)
		}
		if i < 0 || i >= len(host) || slices.Contains(chosen, host[i]) {
			break
		}
		chosen = append(chosen, host[i])
	}
	return chosen, nil
}

// onlyWithPrefix returns the index of the one GPU whose UUID begins so; -1 if it is not one.
func onlyWithPrefix(host []cudackpt.GPU, prefix string) int {
	found := -1
	for i, gpu := range host {
		if prefix != "" && strings.HasPrefix(gpu.UUID.String(), prefix) {
			if found >= 0 {
				return -1
			}
			found = i
		}
	}
	return found
}

// Renumber changes CUDA_VISIBLE_DEVICES to what is meant where only the given GPUs are visible.
// A job that resumes elsewhere finds its GPUs by these numbers.
func (g GPUs) Renumber(env []string) []string {
	if _, is := lookup(env, visibleDevices); !is || len(g.Visible) == 0 {
		return env
	}
	var numbers []string
	for _, gpu := range g.order {
		if i := slices.Index(g.Visible, gpu); i >= 0 {
			numbers = append(numbers, strconv.Itoa(i))
		}
	}
	env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, visibleDevices+"=") })
	return append(env, visibleDevices+"="+strings.Join(numbers, ","))
}

func lookup(env []string, name string) (string, bool) {
	for _, v := range slices.Backward(env) {
		if value, is := strings.CutPrefix(v, name+"="); is {
			return value, true
		}
	}
	return "", false
}
