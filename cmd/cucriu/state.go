package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
)

func stateCommand() *cobra.Command {
	var asJSON bool
	var pids []int
	cmd := &cobra.Command{
		Use:   "state -p PID",
		Short: "Show the CUDA state of processes: running, locked, checkpointed or failed",
		Long: `Show the CUDA state of processes: running, locked, checkpointed or failed.

Of a process that is stopped, the thread through which the driver works is let
run for the moment of the answer, unless a dump or restore is at work on it.`,
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
			return writeProcesses(cmd.OutOrStdout(), processes)
		},
	}
	pidsFlag(cmd, &pids)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func writeProcesses(out io.Writer, processes []hooks.CUDAProcess) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PID\tNAME\tSTATE\tGPU MEMORY\tSEES\tNOTE")
	for _, p := range processes {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", p.PID, p.Name, p.State, memoryText(p.MemoryBytes), count(len(p.GPUs), "GPU"), p.Note)
	}
	return table.Flush()
}

// memoryText names the GPUs on which a process holds memory, and how much.
func memoryText(held map[cudackpt.UUID]uint64) string {
	var parts []string
	for _, uuid := range slices.SortedFunc(maps.Keys(held), cudackpt.UUID.Compare) {
		size := fmt.Sprintf("%d MiB", held[uuid]>>20)
		if held[uuid] == cudackpt.UnknownMemory {
			size = "?"
		}
		parts = append(parts, fmt.Sprintf("%s on %v", size, uuid))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
