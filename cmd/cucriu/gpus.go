package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
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
	var asJSON, uuids bool
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
				return refusedError{err}
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
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), rows)
			}
			out := newTable(cmd.OutOrStdout(), "INDEX", "PCI", "MODEL", "FREE", "TOTAL", "")
			for _, r := range rows {
				out.row(strconv.Itoa(r.Index), r.PCIBusID, r.Model, mib(r.FreeBytes), mib(r.TotalBytes), "")
				if uuids {
					out.below(r.UUID.String())
				}
			}
			return out.write(cmd.OutOrStdout())
		},
	}
	jsonFlag(cmd, &asJSON)
	uuidFlag(cmd, &uuids)
	cmd.Flags().VarP((*pidValue)(&pid), "pid", "p", "the process whose view is shown (default: the host's)")
	return cmd
}

// gpusOf lists the GPUs of the host, or those that a process can see if pid is not 0.
func gpusOf(driver *cudackpt.Driver, pid int) ([]cudackpt.GPU, error) {
	if pid == 0 {
		return driver.HostGPUs()
	}
	findings, err := preflight.ProcessFindings(pid)
	if err == nil {
		err = findings.Err()
	}
	if err != nil {
		return nil, err
	}
	return driver.VisibleGPUs(pid)
}

func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
