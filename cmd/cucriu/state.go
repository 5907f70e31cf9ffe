package main

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
)

func stateCommand() *cobra.Command {
	var asJSON, uuids bool
	var pids []int
	cmd := &cobra.Command{
		Use:   "state -p PID",
		Short: "Show the CUDA state of processes: running, locked, checkpointed or failed",
		Long: `Show the CUDA state of processes: running, locked, checkpointed or failed.

Of a process that is stopped, the thread through which the driver works is let
run for the moment of the answer, unless a dump or restore is at work on it.
GPUs are shown by their index in cucriu gpus.`,
		Example: "  cucriu state -p 4711\n  cucriu state -p 4711 -p 4712 --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			processes, err := hook.States(cmd.Context(), pids)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), processes)
			}
			return writeProcesses(cmd.OutOrStdout(), indexOfHost(hook), processes, uuids)
		},
	}
	pidsFlag(cmd, &pids)
	jsonFlag(cmd, &asJSON)
	uuidFlag(cmd, &uuids)
	return cmd
}

func writeProcesses(out io.Writer, index gpuIndex, processes []hooks.CUDAProcess, uuids bool) error {
	table := newTable(out, "PID", "NAME", "STATE", "GPU MEMORY", "SEES", "NOTE")
	for _, p := range processes {
		sees := make([]cudackpt.UUID, len(p.GPUs))
		for i, gpu := range p.GPUs {
			sees[i] = gpu.UUID
		}
		table.row(strconv.Itoa(p.PID), p.Name, p.State, index.memory(p.MemoryBytes), index.names(sees), p.Note)
		if uuids && len(p.MemoryBytes) > 0 {
			table.below(index.details(p.MemoryBytes))
		}
	}
	return table.write(out)
}
