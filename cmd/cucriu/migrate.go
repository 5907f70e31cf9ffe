package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/units"
	"cucriu/internal/migrate"
	"cucriu/internal/migrate/prepare"
)

func migrateCommand() *cobra.Command {
	var pid int
	var asTimeline bool
	var job string
	var rsh, moveAddress string
	var force []string
	var o migrate.Options
	cmd := &cobra.Command{
		Use:   "migrate {-t PID | --job DIR|NAME} --to HOST",
		Short: "Move a running job to the GPUs of another host",
		Long: `
The destination is reached through your own ssh: whatever makes "ssh HOST cucriu
receive" work (its configuration, agent, jump hosts) applies here, and no service has
to run there. The data goes over several separate TLS connections, whose certificates
are exchanged through ssh, to a port that the destination opens for this migration
only.

Both hosts are checked before anything is touched, and --dry-run ends there.
Whatever fails after that, exactly one copy survives: here, until the destination
holds the complete job, stopped; there, once the copy here has been ended. If a
host or the network fails in between, cucriu status on either host says which host
has the job, and cucriu recover finishes the migration.

The destination needs root, cucriu, criu, the same driver and GPUs of the same
model, and the files that the job uses.

With --job, a long job of cucriu run moves with its checkpoints: the existing ones
are sent first, then a last one ends the job here, and a supervisor there resumes
from it, in the same directory. Its cucriu run here ends with --moved-status.`,
		Example: `  cucriu migrate -t 4711 --to gpu-b --dry-run
  cucriu migrate -t 4711 --to gpu-b
  cucriu migrate -t 4711 --to root@gpu-b --precopy --bandwidth 1G
  cucriu migrate --job train --to gpu-b`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case pid != 0 && job != "":
				return usageError{errors.New("-t and --job cannot be combined")}
			case pid == 0 && job == "":
				return usageError{errors.New("specify the root of the tree with -t, or a long job with --job")}
			case o.Host == "":
				return usageError{errors.New("specify the destination with --to")}
			}
			if err := onlyForOne(cmd, job != ""); err != nil {
				return err
			}
			o.RSH, o.MoveAddress = strings.Fields(rsh), strings.Fields(moveAddress)
			hook, err := newHook()
			if err != nil {
				return err
			}
			hook.Force = force
			p := newProgress(cmd)
			o.Progress = p.migration
			var result migrate.Result
			err = atSignal(cmd, p.say, "cancelling; the job stays here, unless it is already complete there", func() (err error) {
				result, err = migrateOne(cmd.Context(), hook, pid, job, o)
				return err
			})
			p.stop()
			summary := migrationSummary{Result: result, DryRun: o.DryRun}
			if asTimeline {
				summary.Timeline = &result.Timeline
			}
			if err != nil {
				summary.Error = err.Error()
			}
			return errors.Join(warned(show(cmd, summary, func(out io.Writer) {
				if job != "" && err == nil {
					writeMovedJob(out, result, o.DryRun)
					return
				}
				writeMigration(out, result, o.DryRun, err)
				if asTimeline && len(result.Timeline.Events) > 0 {
					drawTimeline(out, result.Timeline)
				}
			})), err)
		},
	}
	flags := cmd.Flags()
	pidFlag(cmd, &pid, "tree", "t", "the root of the process tree")
	flags.StringVar(&job, "job", "", "a long job of cucriu run, by name or directory, instead of -t")
	flags.StringVar(&o.Start, "start", "", "with --job: the command that starts its cucriu run there, such as \"systemctl start cucriu-job@train\" (default: as it was run here)")
	flags.StringVar(&o.Host, "to", "", "the destination, as ssh knows it: [USER@]HOST (required)")
	flags.BoolVar(&o.DryRun, "dry-run", false, "only check both hosts")
	choose(cmd, &o.Precopy, "precopy", "send the job's memory once while it keeps running, and then only what has changed: never, always, or auto, where it costs little",
		word[migrate.Precopy]{"auto", migrate.PrecopyAuto}, word[migrate.Precopy]{"never", migrate.PrecopyNever}, word[migrate.Precopy]{"always", migrate.PrecopyAlways})
	flags.Lookup("precopy").NoOptDefVal = "always"
	timeoutFlag(cmd, &o.MaxPause, "max-pause", "refuse or cancel the migration rather than pause the job for longer")
	flags.StringVar(&rsh, "rsh", "ssh", "the command that reaches the destination")
	flags.StringVar(&o.Remote, "remote-cucriu", "cucriu", "how cucriu is run there, such as \"sudo cucriu\"")
	flags.StringArrayVar(&o.Bind, "bind", nil, "an address of the destination on which to receive the data (default: all); may be repeated")
	portsFlag(cmd, &o.Ports, "a port of the destination on which to receive the data, or a range such as 7000-7010 (default: any)")
	choose(cmd, &o.ViaSSH, "via", "how the data is sent: tls, over separate connections; ssh, if no port is open", word[bool]{"tls", false}, word[bool]{"ssh", true})
	flags.IntVar(&o.Streams, "streams", 0, "number of data connections (default: by the number of cores)")
	sizeFlag(cmd, &o.BytesPerSecond, "bandwidth", "limit the data rate, in bytes per second, such as 500M")
	choose(cmd, &o.Compress, "compress", "compress the data: never, always, or auto, where it then arrives sooner",
		word[migrate.Compress]{"auto", migrate.CompressAuto}, word[migrate.Compress]{"never", migrate.CompressNever}, word[migrate.Compress]{"always", migrate.CompressAlways})
	choose(cmd, &o.TCP, "tcp", "what to do with TCP connections to other programs: refuse, close or keep",
		word[prepare.TCP]{"refuse", prepare.TCPRefuse}, word[prepare.TCP]{"close", prepare.TCPClose}, word[prepare.TCP]{"keep", prepare.TCPKeep})
	flags.StringVar(&moveAddress, "move-address", "", "with --tcp keep: a command that moves the address of the job, run here with \"there\" once the job is stopped, and with \"back\" if it stays here")
	choose(cmd, &o.Copy, "copy-files", "which of the job's files are copied to the destination: none, missing, or changed (and missing)",
		word[prepare.Copy]{"none", prepare.CopyNone}, word[prepare.Copy]{"missing", prepare.CopyMissing}, word[prepare.Copy]{"changed", prepare.CopyChanged})
	flags.StringVar(&o.Stage, "stage", "", "a directory for the image (default: /dev/shm, in memory)")
	criuFlag(cmd, &o.Criu, "path of the criu to run here")
	forceFlag(cmd, &force)
	flags.BoolP("verbose", "v", false, "print a line for each phase as it begins")
	flags.BoolVar(&asTimeline, "timeline", false, "show what both hosts did, and when; with --json, in Chrome's trace format")
	jsonFlag(cmd)
	return cmd
}

// migrationSummary is the migrate command's JSON.
type migrationSummary struct {
	migrate.Result
	DryRun   bool            `json:"dry_run"`
	Error    string          `json:"error,omitempty"`
	Timeline *timeline.Trace `json:"timeline,omitempty"`
}

// packets describes the way for data.
func packets(r migrate.Result) string {
	text := fmt.Sprintf(", round trip %v", r.RoundTrip.Round(10*time.Microsecond))
	if r.MTU > 0 {
		text += fmt.Sprintf(", MTU %d bytes", r.MTU)
	}
	return text
}

// precopyPays says whether it would.
func precopyPays(from float64) string {
	if from >= 1 {
		return "--precopy would not pay; "
	}
	return fmt.Sprintf("--precopy pays if more than %.0f %% of its memory stays the same while it is sent; ", 100*from)
}

// predicted says how long a job would be paused.
func predicted(r migrate.Result) string {
	most := r.Predicted.Round(100 * time.Millisecond)
	if !r.Precopied {
		return fmt.Sprintf("for about %v", most)
	}
	return fmt.Sprintf("for about %v to %v, depending on what changes meanwhile, once its memory has been sent ahead", r.Least.Round(100*time.Millisecond), most)
}

// writeMigration says how a migration went. The table of the checks is shown where nothing else
// was done.
func writeMigration(out io.Writer, r migrate.Result, dryRun bool, err error) {
	if r.Report != nil && (dryRun || preflight.Refused(err)) {
		table := newTable("HOST", "CHECK", "VERDICT", "FOUND")
		for _, row := range r.Report.Table() {
			table.row(row.Where, row.What, row.Verdict, row.Found)
			if row.Remedy != "" {
				table.below(row.Remedy)
			}
		}
		table.write(out)
	}
	switch {
	case err != nil:
	case dryRun:
		fmt.Fprintf(out, "the job can move to %s, and would be paused %s (bandwidth %s/s%s); %snothing was touched\n",
			r.Host, predicted(r), units.Size(int64(r.Bandwidth)), packets(r), precopyPays(r.PrecopyPaysFrom))
	default:
		fmt.Fprintf(out, "the job runs at %s as process %d: it was paused for %v (predicted: %v); %s sent meanwhile", r.Host, r.PID,
			r.Pause.Round(time.Millisecond), r.Predicted.Round(100*time.Millisecond), units.Size(r.Bytes))
		if r.Ahead > 0 {
			fmt.Fprintf(out, ", %s before, for which it was paused for %v", units.Size(r.Ahead), r.Before.Round(time.Millisecond))
		}
		if all := r.Bytes + r.Ahead; r.Link < all*9/10 {
			fmt.Fprintf(out, "; %s went over the link", units.Size(r.Link))
		}
		fmt.Fprintln(out)
	}
}

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
	return migrate.MigrateJob(ctx, hook, jobs.NewLeaving(hook, found), o)
}

func writeMovedJob(out io.Writer, r migrate.Result, dryRun bool) {
	if dryRun {
		fmt.Fprintf(out, "the job can move to %s; nothing was touched\n", r.Host)
		return
	}
	fmt.Fprintf(out, "the job runs at %s, where its cucriu run is process %d: it was paused for %v; %s sent meanwhile, %s before\n",
		r.Host, r.PID, r.Pause.Round(time.Millisecond), units.Size(r.Bytes), units.Size(r.Ahead))
}
