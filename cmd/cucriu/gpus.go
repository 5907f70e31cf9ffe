package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"cucriu/criuutil/proc"
	"cucriu/cudackpt"
)

// gpuRow is a GPU as the gpus command prints it.
type gpuRow struct {
	Index int `json:"index"`
	cudackpt.GPU
	FreeBytes  uint64 `json:"free_bytes"`
	TotalBytes uint64 `json:"total_bytes"`
}

func gpusCommand() *cobra.Command {
	var asJSON bool
	var pid int
	cmd := &cobra.Command{
		Use:     "gpus",
		Short:   "Show the GPUs of this host, or those that a process can see",
		Example: "  cucriu gpus\n  cucriu gpus --pid 4711",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "INDEX\tUUID\tPCI\tMODEL\tFREE\tTOTAL")
			for _, r := range rows {
				fmt.Fprintf(table, "%d\t%v\t%s\t%s\t%d MiB\t%d MiB\n", r.Index, r.UUID, r.PCIBusID, r.Model, r.FreeBytes>>20, r.TotalBytes>>20)
			}
			return table.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().VarP((*pidValue)(&pid), "pid", "p", "the process whose view is shown (default: the host's)")
	return cmd
}

// gpusOf lists the GPUs of the host, or those that a process can see if pid is not 0.
func gpusOf(driver *cudackpt.Driver, pid int) ([]cudackpt.GPU, error) {
	if pid == 0 {
		return driver.HostGPUs()
	}
	process, err := proc.Open(pid)
	if errors.Is(err, proc.ErrGone) {
		return nil, refusedError{err}
	}
	if err != nil {
		return nil, err
	}
	defer process.Close()
	return driver.VisibleGPUs(pid)
}
