package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/jobs"
	"cucriu/internal/logging"
)

func restoreCommand() *cobra.Command {
	var criu criuFlags
	var pidFile string
	var foreground, detached, cutLogs, asJSON bool
	cmd := &cobra.Command{
		Use:   "restore -D DIR",
		Short: "Restore a process tree with its GPU state, with criu",
		Long: `Restore a process tree with its GPU state, with criu.

It returns once the job runs, and leaves it running; with --foreground it stays,
passes signals on to the job's root process and ends with its exit status.

A job that wrote into a pipe to a process outside of its tree writes to the
standard output of this command; if that is a pipe, only with --foreground, else
to /dev/null.

The checks that can be made beforehand (whether the image is whole, whether its
pids are free, whether its files and directories are as they were, driver version,
GPU map, free GPU memory) are made before criu creates anything. If the restore fails later, what exists of the job is ended,
and the image is intact.`,
		Example: `  cucriu restore -D /var/lib/images/job1
  cucriu restore -D /var/lib/images/job1 -j --foreground
  CUCRIU_CONFIG=/root/swap.yaml cucriu restore -D /var/lib/images/job1 --pidfile /run/job1.pid`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if foreground && cmd.Flags().Changed("restore-detached") {
				return usageError{errors.New("either --foreground or -d")}
			}
			if !detached {
				return usageError{errors.New("-d=false: to stay is --foreground")}
			}
			options, err := criu.options()
			if err != nil {
				return err
			}
			options.RPC.RstSibling = proto.Bool(foreground) // so that the root is our child, and we get its exit status
			if asJSON {
				options.Output = os.Stderr // nothing but JSON on the standard output
			}
			root, over := 0, deferStops(cmd)
			err = drive(cmd, "restore", asJSON, criu.images, func(ctx context.Context, hook *hooks.Hook) (checkpoint.Result, error) {
				result, err := jobs.RestoreCut(ctx, hook, criu.images, options, cutLogs)
				root = result.RootPID
				return result, err
			})
			over()
			if err != nil {
				return err
			}
			if pidFile != "" {
				if err := renameio.WriteFile(pidFile, []byte(strconv.Itoa(root)+"\n"), 0o644); err != nil {
					fmt.Fprintln(logging.Stderr(), "cucriu: the job runs, but its pid file could not be written:", err)
				}
			}
			if foreground {
				return attach(root, criu.shellJob)
			}
			return nil
		},
	}
	criu.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&foreground, "foreground", false, "stay, pass signals on, and end with the job's exit status")
	flags.BoolVarP(&detached, "restore-detached", "d", true, "return once the job runs (the default)")
	flags.BoolVar(&cutLogs, "cut-logs", false, "cut files that the job was writing at their end, and that have grown since, back to their size at the dump; what is newer is kept beside them")
	flags.StringVar(&pidFile, "pidfile", "", "write the pid of the root process to this file")
	jsonFlag(cmd, &asJSON)
	return cmd
}
