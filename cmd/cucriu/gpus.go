package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
)

// gpuRow is a GPU as the gpus command prints it.
type gpuRow struct {
	Index int `json:"index"`
	cudackpt.GPU
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
}

func gpusCommand() *cobra.Command {
	var uuids bool
	var pid int
	cmd := &cobra.Command{
		Use:     "gpus",
		Short:   "Show the GPUs of this host, or those that a process can see",
		Example: "  cucriu gpus\n  cucriu gpus --pid 4711",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pid != 0 {
				if err := requireRoot(cmd); err != nil {
					return err
				}
			}
			hook, err := newHook()
			if err != nil {
				return err
			}
			driver, err := hook.OpenDriver()
			if err != nil {
				return preflight.AsRefusal(err)
			}
			gpus, err := gpusOf(driver, pid)
			if err != nil {
				return err
			}
			rows := make([]gpuRow, len(gpus))
			for i, gpu := range gpus {
				memory, err := driver.Memory(cmd.Context(), gpu.UUID)
				if err != nil {
					return err
				}
				rows[i] = gpuRow{Index: i, GPU: gpu, FreeBytes: memory.Free, TotalBytes: memory.Total}
			}
			return show(cmd, rows, func(out io.Writer) {
				table := newTable("INDEX", "PCI", "MODEL", "FREE", "TOTAL", "")
				for _, r := range rows {
					table.row(strconv.Itoa(r.Index), r.PCIBusID, r.Model, mib(r.FreeBytes), mib(r.TotalBytes), "")
					if uuids {
						table.below(r.UUID.String())
					}
				}
				table.write(out)
			})
		},
	}
	jsonFlag(cmd)
	uuidFlag(cmd, &uuids)
	pidFlag(cmd, &pid, "pid", "p", "show the GPUs that this process can see (default: the host's)")
	return cmd
}

// gpusOf lists the GPUs of the host, or those that a process can see if pid is not 0.
func gpusOf(driver *cudackpt.Driver, pid int) ([]cudackpt.GPU, error) {
	if pid == 0 {
		return driver.HostGPUs()
	}
	if err := checkpoint.CheckProcess(pid); err != nil {
		return nil, err
	}
	return driver.VisibleGPUs(pid)
}

func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// People read GPUs by their index: that in cucriu gpus or, of an image, that in its captured
// set. It is the index that a rule of the map takes.

// gpuIndex finds the index of a GPU.
type gpuIndex map[cudackpt.UUID]int

// indexOfHost returns the indexes of cucriu gpus; none if the driver does not tell.
func indexOfHost(hook *hooks.Hook) gpuIndex {
	driver, err := hook.OpenDriver()
	if err != nil {
		return nil
	}
	gpus, err := driver.HostGPUs()
	if err != nil {
		return nil
	}
	return indexOf(gpus)
}

func indexOf(gpus []cudackpt.GPU) gpuIndex {
	index := make(gpuIndex)
	for i, gpu := range gpus {
		index[gpu.UUID] = i
	}
	return index
}

// names returns the indexes of GPUs, such as "0,2-5". One that has none is "?".
func (x gpuIndex) names(uuids []cudackpt.UUID) string {
	var indexes []int
	for _, uuid := range uuids {
		if i, known := x[uuid]; known {
			indexes = append(indexes, i)
		}
	}
	var names []string
	missing := len(indexes) < len(uuids)
	slices.Sort(indexes)
	for len(indexes) > 0 {
		n := 1
		for n < len(indexes) && indexes[n] == indexes[0]+n {
			n++
		}
		name := strconv.Itoa(indexes[0])
		if n > 1 {
			name += "-" + strconv.Itoa(indexes[n-1])
		}
		names, indexes = append(names, name), indexes[n:]
	}
	if missing {
		names = append(names, "?")
	}
	return strings.Join(names, ",")
}

// memory says how much a process holds on which GPUs, such as "18 MiB on 0,1".
func (x gpuIndex) memory(held map[cudackpt.UUID]uint64) string {
	if len(held) == 0 {
		return "none"
	}
	var sum uint64
	for _, bytes := range held {
		if bytes == cudackpt.UnknownMemory {
			return "? on " + x.names(slices.Collect(maps.Keys(held)))
		}
		sum += bytes
	}
	return mib(sum) + " on " + x.names(slices.Collect(maps.Keys(held)))
}

// details has a line for each GPU on which a process holds memory, with its UUID.
func (x gpuIndex) details(held map[cudackpt.UUID]uint64) string {
	var lines []string
	for _, uuid := range slices.SortedFunc(maps.Keys(held), func(a, b cudackpt.UUID) int { return x.of(a) - x.of(b) }) {
		size := mib(held[uuid])
		if held[uuid] == cudackpt.UnknownMemory {
			size = "?"
		}
		lines = append(lines, fmt.Sprintf("%s on %s, %v", size, x.names([]cudackpt.UUID{uuid}), uuid))
	}
	return strings.Join(lines, "\n")
}

func (x gpuIndex) of(uuid cudackpt.UUID) int {
	if i, known := x[uuid]; known {
		return i
	}
	return len(x)
}

func mapCommand() *cobra.Command {
	var dir string
	var pairs []config.Rule
	var uuids bool
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Show which of this host's GPUs would replace each GPU of an image",
		Long: `
The plan is the one a restore would use, made from the image's manifest, this
host's GPUs and the configuration. Nothing is restored or changed. IMAGE is the
position of a GPU among those that the job could see, HERE its index in cucriu
gpus: the values of index in the configuration, and of --map IMAGE=HERE.

The exit status is 3 if the restore would be refused: the map cannot be satisfied,
the driver version differs, a GPU has too little free memory, or the manifest is
damaged.`,
		Example: "  cucriu map -D /var/lib/images/job1\n  cucriu map -D /var/lib/images/job1 --map 0=1",
		Args:    noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			if dir == "" {
				dir = "."
			}
			if err := requireImage(dir); err != nil {
				return err
			}
			manifest, err := image.Open(dir).Manifest()
			if errors.Is(err, os.ErrNotExist) {
				return show(cmd, []mapped{}, func(out io.Writer) { fmt.Fprintln(out, "no process of the image uses CUDA: there is nothing to map") })
			}
			if err != nil {
				return preflight.AsRefusal(err)
			}
			useMap(hook, pairs)
			plan, err := checkpoint.PlanGPUs(cmd.Context(), hook, manifest)
			if err != nil {
				err = preflight.AsRefusal(err)
			}
			return errors.Join(show(cmd, mappedOf(plan), func(out io.Writer) { writePlan(out, plan, indexOfHost(hook), uuids) }), err)
		}),
	}
	folderFlag(cmd, &dir, "images-dir", "D", "the image directory (default: this one)")
	mapFlag(cmd, &pairs)
	jsonFlag(cmd)
	uuidFlag(cmd, &uuids)
	return cmd
}

// mapped is what map reports of a GPU with --json.
type mapped struct {
	From cudackpt.UUID `json:"from"`
	To   cudackpt.UUID `json:"to"`
	Why  string        `json:"why"`
}

func mappedOf(plan checkpoint.Plan) []mapped {
	all := []mapped{} // not nil: null is no list in JSON
	for _, a := range plan.Assignments {
		all = append(all, mapped{a.From.UUID, a.To.UUID, cmp.Or(a.Rule, a.Reason)})
	}
	return all
}

func writePlan(out io.Writer, plan checkpoint.Plan, here gpuIndex, uuids bool) {
	if len(plan.Assignments) == 0 {
		return
	}
	table := newTable("IMAGE", "HERE", "MODEL", "PCI", "PCI HERE", "WHY")
	for i, a := range plan.Assignments {
		table.row(strconv.Itoa(i), here.names([]cudackpt.UUID{a.To.UUID}), a.From.Model, a.From.PCIBusID, a.To.PCIBusID, cmp.Or(a.Rule, a.Reason))
		if uuids {
			table.below(a.From.UUID.String() + " -> " + a.To.UUID.String())
		}
	}
	for _, r := range plan.Unused {
		table.below(r)
	}
	table.write(out)
}
