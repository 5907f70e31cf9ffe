package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cucriu/hooks/image"
)

func mapCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Explain which of this host's GPUs would take the place of each GPU of an image",
		Long: `Explain which of this host's GPUs would take the place of each GPU of an image.

The plan is made as the restore would make it, from the image's manifest, this
host's GPUs and the configuration. Nothing is restored or changed. The exit
status is 3 if the restore would be refused: the map cannot be met, the driver is
another, a GPU has too little free memory, or the manifest is damaged.`,
		Example: "  cucriu map -D /var/lib/images/job1",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			manifest, err := image.ReadManifest(dir)
			if err != nil {
				return refusedError{err}
			}
			driver, err := hook.OpenDriver()
			if err != nil {
				return refusedError{err}
			}
			plan, err := hook.Host().PlanRestore(cmd.Context(), driver, manifest)
			for _, line := range plan.Explain() {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if err != nil {
				return refusedError{err}
			}
			return nil
		},
	}
	dir = "."
	cmd.Flags().VarP((*folderValue)(&dir), "images-dir", "D", "the image directory")
	return cmd
}
