package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks/migrate"
	"cucriu/hooks/migrate/prepare"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/units"
)

func migrateCommand() *cobra.Command {
	var pid int
	var asJSON, asTimeline bool
	var job string
	var rsh, moveAddress string
	var bandwidth int64
	var force []string
	var o migrate.Options
	cmd := &cobra.Command{
		Use:   "migrate {-t PID | --job DIR|NAME} --to HOST",
		Short: "Move a running job to the GPUs of another host",
		Long: `Move a running job to the GPUs of another host.

The way there is your own ssh: whatever makes "ssh HOST cucriu receive" work (its
configuration, agent, jump hosts) counts here, and no service runs there
beforehand. The data goes over several TLS connections of its own, whose
certificates are exchanged through ssh, to a port that the destination opens for
this migration alone.

Both hosts are checked before anything is touched, and --dry-run ends there.
Whatever fails after that, exactly one copy goes on: here, until the destination
holds the complete job, stopped; there, once the copy here has been ended. If a
host or the network fails in between, cucriu status on either host says what is
where, and cucriu recover finishes it.

The destination needs root, cucriu, criu, the same driver and GPUs of the same
model, and the files that the job uses.

With --job, a long job of cucriu run moves with its checkpoints: those that there
are go ahead, then a last one ends the job here, and a supervisor there goes on from
it, in the same directory. Its cucriu run here ends with --moved-status.`,
		Example: `  cucriu migrate -t 4711 --to gpu-b --dry-run
  cucriu migrate -t 4711 --to gpu-b
  cucriu migrate -t 4711 --to root@gpu-b --precopy --bandwidth 1G
  cucriu migrate --job train --to gpu-b`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (pid == 0) == (job == ""):
				return usageError{errors.New("name the root of the tree with -t, or a long job with --job")}
			case o.Host == "":
				return usageError{errors.New("name the destination with --to")}
			}
			if err := onlyForOne(cmd, job != ""); err != nil {
				return err
			}
			if err := preflight.CheckForce(force); err != nil {
				return usageError{err}
			}
			o.RSH, o.BytesPerSecond = strings.Fields(rsh), bandwidth
			o.MoveAddress = strings.Fields(moveAddress)
			hook, err := newHook()
			if err != nil {
				return err
			}
			hook.Force = force
			p := newProgress("")
			o.Progress = p.migration
			undone := context.AfterFunc(cmd.Context(), func() {
				p.say(fmt.Sprintf("%v: the job goes on here, unless it is complete there already", context.Cause(cmd.Context())))
			})
			result, err := migrateOne(cmd.Context(), hook, pid, job, o)
			undone()
			p.stop()
			if asJSON {
				if jsonErr := writeJSON(cmd.OutOrStdout(), newMigrationSummary(result, o.DryRun, asTimeline, err)); err == nil {
					err = jsonErr
				}
				return err
			}
			if job != "" && err == nil {
				return writeMovedJob(cmd.OutOrStdout(), result, o.DryRun)
			}
			err = errors.Join(writeMigration(cmd.OutOrStdout(), result, o.DryRun, err), err)
			if asTimeline && len(result.Timeline.Events) > 0 {
				err = errors.Join(err, drawTimeline(cmd.OutOrStdout(), result.Timeline, widthOf(cmd.OutOrStdout(), defaultColumns)))
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.VarP((*pidValue)(&pid), "tree", "t", "the root of the process tree")
	flags.StringVar(&job, "job", "", "a long job of cucriu run, by its name or its directory, instead of -t")
	flags.StringVar(&o.Start, "start", "", "with --job: the command that starts its cucriu run there, such as \"systemctl start cucriu-job@train\" (default: as it was run here)")
	flags.StringVar(&o.Host, "to", "", "the destination, as ssh knows it: [USER@]HOST (required)")
	flags.BoolVar(&o.DryRun, "dry-run", false, "only check both hosts")
	choose(cmd, &o.Precopy, "precopy", "send the job's memory once before, while it runs on, and then what has changed: never, always, or where little is lost by it",
		word[migrate.Precopy]{"auto", migrate.PrecopyAuto}, word[migrate.Precopy]{"never", migrate.PrecopyNever}, word[migrate.Precopy]{"always", migrate.PrecopyAlways})
	flags.Lookup("precopy").NoOptDefVal = "always"
	flags.Var((*timeoutValue)(&o.MaxPause), "max-pause", "refuse, or give up, rather than have the job stand still for longer")
	flags.StringVar(&rsh, "rsh", "ssh", "the command that reaches the destination")
	flags.StringVar(&o.Remote, "remote-cucriu", "cucriu", "how cucriu is run there, such as \"sudo cucriu\"")
	flags.StringArrayVar(&o.Bind, "bind", nil, "an address of the destination to receive the data at (default: all); may be repeated")
	flags.StringVar(&o.Ports, "ports", "", "a port of the destination to receive the data at, or a range, such as 7000-7010 (default: any)")
	choose(cmd, &o.ViaSSH, "via", "how the data goes: tls, over connections of its own; ssh, where no port is open", word[bool]{"tls", false}, word[bool]{"ssh", true})
	flags.IntVar(&o.Streams, "streams", 0, "connections for the data (default: by the number of cores)")
	flags.Var((*sizeValue)(&bandwidth), "bandwidth", "send no more than so many bytes in a second, such as 500M")
	choose(cmd, &o.Compress, "compress", "compress the data: never, always, or what arrives sooner then",
		word[migrate.Compress]{"auto", migrate.CompressAuto}, word[migrate.Compress]{"never", migrate.CompressNever}, word[migrate.Compress]{"always", migrate.CompressAlways})
	choose(cmd, &o.TCP, "tcp", "what becomes of TCP connections with other programs: refuse, close or keep",
		word[prepare.TCP]{"refuse", prepare.TCPRefuse}, word[prepare.TCP]{"close", prepare.TCPClose}, word[prepare.TCP]{"keep", prepare.TCPKeep})
	flags.StringVar(&moveAddress, "move-address", "", "with --tcp keep: a command that moves the address of the job, run here with \"there\" once the job stands still, and with \"back\" if it goes on here")
	choose(cmd, &o.Copy, "copy-files", "which files of the job move with it: none, missing, or also changed ones",
		word[prepare.Copy]{"none", prepare.CopyNone}, word[prepare.Copy]{"missing", prepare.CopyMissing}, word[prepare.Copy]{"changed", prepare.CopyChanged})
	flags.StringVar(&o.Stage, "stage", "", "a directory for the image (default: /dev/shm, in memory)")
	flags.StringVar(&o.Criu, "criu", os.Getenv("CUCRIU_CRIU"), "the criu to run here (default: $CUCRIU_CRIU, else the system's)")
	flags.StringArrayVar(&force, "force", nil, "override what a check refuses, by the finding's name (see cucriu check); may be repeated")
	flags.BoolVar(&asTimeline, "timeline", false, "draw what both hosts did, and when; with --json, in Chrome's trace format")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// migrationSummary is the migrate command's JSON.
type migrationSummary struct {
	migrate.Result
	DryRun   bool            `json:"dry_run"`
	Error    string          `json:"error,omitempty"`
	Timeline *timeline.Trace `json:"timeline,omitempty"`
}

func newMigrationSummary(r migrate.Result, dryRun, asTimeline bool, err error) migrationSummary {
	s := migrationSummary{Result: r, DryRun: dryRun}
	if asTimeline {
		s.Timeline = &r.Timeline
	}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

// packets describes the way for data.
func packets(r migrate.Result) string {
	text := fmt.Sprintf(", a round trip %v", r.RoundTrip.Round(10*time.Microsecond))
	if r.MTU > 0 {
		text += fmt.Sprintf(", packets of %d bytes", r.MTU)
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

// predicted says how long a job would stand still.
func predicted(r migrate.Result) string {
	most := r.Predicted.Round(100 * time.Millisecond)
	if !r.Precopied {
		return fmt.Sprintf("for some %v", most)
	}
	return fmt.Sprintf("for some %v to %v, by what changes meanwhile, once its memory has been sent ahead", r.Least.Round(100*time.Millisecond), most)
}

// writeMigration says how a migration went. The table of the checks is shown where nothing else
// was done.
func writeMigration(out io.Writer, r migrate.Result, dryRun bool, err error) error {
	if r.Report != nil && (dryRun || preflight.Refused(err)) {
		table := newTable(out, "HOST", "CHECK", "VERDICT", "FOUND")
		for _, row := range r.Report.Table() {
			table.row(row.Where, row.What, row.Verdict, row.Found)
			if row.Remedy != "" {
				table.below(row.Remedy)
			}
		}
		if err := table.write(out); err != nil {
			return err
		}
	}
	switch {
	case err != nil:
		return nil
	case dryRun:
		_, err = fmt.Fprintf(out, "the job can move to %s, and would stand still %s (the way there takes %s/s%s); %snothing was touched\n",
			r.Host, predicted(r), units.Size(int64(r.Bandwidth)), packets(r), precopyPays(r.PrecopyPaysFrom))
	default:
		_, err = fmt.Fprintf(out, "the job runs at %s as process %d: it stood still for %v (predicted: %v); %s sent meanwhile", r.Host, r.PID,
			r.Pause.Round(time.Millisecond), r.Predicted.Round(100*time.Millisecond), units.Size(r.Bytes))
		if r.Ahead > 0 {
			fmt.Fprintf(out, ", %s before, for which it stood still for %v", units.Size(r.Ahead), r.Before.Round(time.Millisecond))
		}
		if all := r.Bytes + r.Ahead; r.Link < all*9/10 {
			fmt.Fprintf(out, "; %s went over the link", units.Size(r.Link))
		}
		fmt.Fprintln(out)
	}
	return err
}
