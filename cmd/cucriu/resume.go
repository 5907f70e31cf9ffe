package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/hooks/config"
	"cucriu/hooks/gpumap"
)

func resumeCommand() *cobra.Command {
	var asJSON, force bool
	var processes []int
	var pairs []string
	cmd := &cobra.Command{
		Use:   "resume -p PID",
		Short: "Bring processes back that were suspended, from whatever state they are in",
		Long: `Bring processes back that were suspended, from whatever state they are in.

Processes that were suspended together are resumed together. They go to the GPUs
that the configuration maps theirs to, or --map in its place; without either,
back to their own. If a GPU lacks the memory, nothing is changed.`,
		Example: "  cucriu resume -p 4711\n  cucriu resume -p 4711 --map '{from: {index: 0}, to: {index: 1}}'",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			if len(pairs) > 0 {
				if hook.Config.GPUs.Map, err = parseMap(pairs); err != nil {
					return usageError{err}
				}
			}
			ended := sayAtSignal(cmd, "a resume that has begun goes on, until the processes run or it fails")
			resumed, err := hook.Resume(cmd.Context(), processes, force)
			ended(err)
			if asJSON {
				if jsonErr := writeJSON(cmd.OutOrStdout(), resumed); jsonErr != nil {
					return jsonErr
				}
				return err
			}
			for _, s := range resumed {
				fmt.Fprintf(cmd.OutOrStdout(), "%v: %s\n", s.PIDs(), s.Message)
			}
			if len(resumed) == 0 && err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to resume: running already")
			}
			return err
		},
	}
	pidsFlag(cmd, &processes)
	cmd.Flags().StringArrayVar(&pairs, "map", nil, "a pair as in gpus.map of the configuration, in whose place it is used")
	cmd.Flags().BoolVar(&force, "force", false, "restore also what something else has checkpointed, without knowing that the GPU memory suffices")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// parseMap reads pairs in the syntax of the configuration file.
func parseMap(pairs []string) ([]gpumap.Rule, error) {
	cfg, err := config.Parse("--map", []byte("version: 1\ngpus:\n  map:\n  - "+strings.Join(pairs, "\n  - ")+"\n"))
	return cfg.GPUs.Map, err
}
