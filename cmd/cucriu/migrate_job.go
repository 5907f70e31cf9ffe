package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/migrate"
	"cucriu/internal/units"
)

// onlyForOne refuses options that make no sense for a long job, or for a tree of processes.
func onlyForOne(cmd *cobra.Command, longJob bool) error {
	wrong, text := []string{"start"}, "only for --job"
	if longJob {
		wrong, text = []string{"max-pause", "via", "tcp", "copy-files", "stage", "criu"}, "not for --job"
	}
	for _, name := range wrong {
		if cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--%s is %s", name, text)}
		}
	}
	return nil
}

// migrateOne moves a tree of processes or a long job.
func migrateOne(ctx context.Context, hook *hooks.Hook, pid int, job string, o migrate.Options) (migrate.Result, error) {
	if job == "" {
		return migrate.Migrate(ctx, hook, pid, o)
	}
	found, err := jobs.Find(hook.Config.RunDir, job)
	if err != nil {
		return migrate.Result{}, err
	}
	return migrate.MigrateJob(ctx, hook, found, o)
}

// settleJob decides about the move of a long job, if it is one.
func settleJob(hook *hooks.Hook, name string, take bool, err error) (message string, is bool, _ error) {
	if err == nil {
		return "", false, nil
	}
	message, jobErr := migrate.SettleJob(hook, name, take)
	return message, !errors.Is(jobErr, os.ErrNotExist), jobErr
}

// writeMovedJob says how the move of a long job went.
func writeMovedJob(out io.Writer, r migrate.Result, dryRun bool) error {
	if dryRun {
		_, err := fmt.Fprintf(out, "the job can move to %s; nothing was touched\n", r.Host)
		return err
	}
	_, err := fmt.Fprintf(out, "the job runs at %s, where its cucriu run is process %d: it stood still for %v; %s sent meanwhile, %s before\n",
		r.Host, r.PID, r.Pause.Round(time.Millisecond), units.Size(r.Bytes), units.Size(r.Ahead))
	return err
}

// givenFlags returns the options that were given, so that cucriu run can be given them on another
// host. Those of this host only are left out.
func givenFlags(set *pflag.FlagSet) []string {
	notTaken := []string{"dir", "takeover", "criu", "config", "adopt"}
	var args []string
	set.Visit(func(f *pflag.Flag) {
		if slices.Contains(notTaken, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if list, is := f.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, value := range values {
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}
