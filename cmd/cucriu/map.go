package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks/gpumap"
	"cucriu/hooks/image"
)

func mapCommand() *cobra.Command {
	var dir string
	var uuids bool
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Explain which of this host's GPUs would take the place of each GPU of an image",
		Long: `Explain which of this host's GPUs would take the place of each GPU of an image.

The plan is made as the restore would make it, from the image's manifest, this
host's GPUs and the configuration. Nothing is restored or changed. IMAGE is the
position of a GPU among those that the job could see, HERE its index in cucriu
gpus: the numbers that index takes in the configuration.

The exit status is 3 if the restore would be refused: the map cannot be met, the
driver is another, a GPU has too little free memory, or the manifest is damaged.`,
		Example: "  cucriu map -D /var/lib/images/job1",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			if dir == "" {
				dir = "."
			}
			if err := requireImage(dir); err != nil {
				return err
			}
			manifest, err := image.ReadManifest(dir)
			if errors.Is(err, os.ErrNotExist) {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "no process of the image uses CUDA: there is nothing to map")
				return err
			}
			if err != nil {
				return refusedError{err}
			}
			driver, err := hook.OpenDriver()
			if err != nil {
				return refusedError{err}
			}
			plan, err := hook.Host().PlanRestore(cmd.Context(), driver, manifest)
			if err != nil {
				err = refusedError{err}
			}
			return errors.Join(writePlan(cmd.OutOrStdout(), plan, indexOfHost(hook), uuids), err)
		},
	}
	cmd.Flags().VarP((*folderValue)(&dir), "images-dir", "D", "the image directory (default: this one)")
	uuidFlag(cmd, &uuids)
	return cmd
}

func writePlan(out io.Writer, plan gpumap.Plan, here gpuIndex, uuids bool) error {
	if len(plan.Assignments) == 0 {
		return nil
	}
	table := newTable(out, "IMAGE", "HERE", "MODEL", "PCI", "PCI HERE", "WHY")
	for i, a := range plan.Assignments {
		why := a.Reason.String()
		if a.Rule != nil {
			why = a.Rule.String()
		}
		table.row(strconv.Itoa(i), here.names([]cudackpt.UUID{a.To.UUID}), a.From.Model, a.From.PCIBusID, a.To.PCIBusID, why)
		if uuids {
			table.below(a.From.UUID.String() + " -> " + a.To.UUID.String())
		}
	}
	for _, r := range plan.Unused {
		table.below(gpumap.UnusedNote(r))
	}
	return table.write(out)
}
