package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/units"
)

func jobsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "list [DIR|NAME]",
		SuggestFor: []string{"ps"},
		Short:      "List the long jobs of this host, or the checkpoints of one",
		Long: `
ALONE is the space that removing a checkpoint would free: the rest of its size is
shared with others. NEW was written for it when it was made. HERE says whether this
host can restore it: driver version, GPU models and their number. Only the metadata
of the checkpoints is read; cucriu jobs verify reads all of their data, and what it
found damaged is shown as such until it is verified again or removed. The exit status
is 1 then.`,
		Example: "  cucriu jobs list\n  cucriu jobs list train\n  cucriu jobs list --json /shared/jobs/4711",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return jobArgument(0, 0)(cmd, args)
		},
		ValidArgsFunction: completeJob(false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listJobs(cmd)
			}
			return listCheckpoints(cmd, args[0])
		},
	}
	jsonFlag(cmd)
	return cmd
}

func listJobs(cmd *cobra.Command) error {
	hook, err := newHook()
	if err != nil {
		return err
	}
	all, err := jobs.Locals(hook.Config.RunDir)
	if err != nil {
		return err
	}
	return show(cmd, all, func(out io.Writer) {
		if len(all) == 0 {
			fmt.Fprintln(out, "no long job is known on this host: cucriu run --dir DIR starts one")
			return
		}
		writeJobs(out, all)
	})
}

// writeJobs shows each job in a row, with what went wrong last below.
func writeJobs(out io.Writer, all []jobs.Local) {
	table := newTable("JOB", "STATE", "PID", "CHECKPOINT", "AGE", "NEXT", "DIRECTORY")
	for _, l := range all {
		pid, checkpoint, age, next := "-", "-", "-", "-"
		if l.PID != 0 {
			pid = strconv.Itoa(l.PID)
		}
		if l.Checkpoint != nil {
			checkpoint, age = l.Checkpoint.Name, ago(l.Checkpoint.At)
		}
		if !l.Next.IsZero() {
			next = "in " + short(time.Until(l.Next))
		}
		table.row(l.Name, l.Describe(), pid, checkpoint, age, next, l.Dir)
		if l.Image != "" {
			table.below("from image " + quote.Name(l.Image))
		}
		switch l.State {
		case jobs.StateUnattended:
			table.below("run the same cucriu run command again to resume supervision")
		case jobs.StateUntold:
			table.below("the same cucriu run says how, and resumes it unless it has finished")
		case jobs.StateHalted:
			table.below("its cucriu run makes no checkpoints while it is stopped: " + jobs.HaltedRemedy(l.PID))
		}
		if text := l.NotProtected(); text != "" {
			table.below(text)
		}
		if l.Trial != nil && l.Trial.Outcome != image.TrialRestores {
			table.below(fmt.Sprintf("trial restore of %s: %v", l.Trial.At.Local().Format(time.DateTime), l.Trial))
		}
		overcome := l.Failure != nil && l.Checkpoint != nil && l.Checkpoint.At.After(l.Failure.At)
		if l.Failure != nil && !overcome {
			table.below(l.Failure.At.Local().Format(time.DateTime) + ": " + l.Failure.Message)
		}
	}
	table.write(out)
}

// checkpointReport is a checkpoint in JSON.
type checkpointReport struct {
	Name         string         `json:"name"`
	Dir          string         `json:"dir"`
	Error        string         `json:"error,omitempty"`     // why it cannot be used
	DamagedAt    time.Time      `json:"damaged_at,omitzero"` // when that was found
	CreatedAt    time.Time      `json:"created_at,omitzero"`
	Bytes        int64          `json:"bytes"`
	AloneBytes   int64          `json:"alone_bytes"`
	NewBytes     int64          `json:"new_bytes"`
	PauseSeconds float64        `json:"pause_seconds"`
	Reason       string         `json:"reason,omitempty"`
	Host         string         `json:"host,omitempty"`
	Driver       string         `json:"driver,omitempty"`
	GPUs         []cudackpt.GPU `json:"gpus"`
	GivenUp      string         `json:"given_up,omitempty"` // why the job resumed from an older one
	Verified     bool           `json:"verified"`
	Pinned       bool           `json:"pinned"`
	Jobs         []string       `json:"jobs,omitempty"` // the directories of jobs that were started from it
	Trial        *image.Trial   `json:"trial,omitempty"`
	Here         bool           `json:"here"`          // this host can take it
	WhyNotHere   string         `json:"why,omitempty"` // or what it lacks
}

func listCheckpoints(cmd *cobra.Command, arg string) error {
	v, err := viewJob([]string{arg})
	if err != nil {
		return err
	}
	reports := []checkpointReport{} // not nil: null is no list in JSON
	for _, c := range v.picked {
		r := reportOf(c)
		if r.Error == "" {
			r.Here, r.WhyNotHere = takes(cmd.Context(), v.hook, c)
		}
		reports = append(reports, r)
	}
	return errors.Join(show(cmd, reports, func(out io.Writer) {
		if len(reports) == 0 {
			fmt.Fprintf(out, "%s (%s) has no checkpoint\n", v.job.Name, v.job.Dir)
			return
		}
		writeCheckpoints(out, reports)
	}), damagedOf(reports...), jobs.CheckMade(v.job))
}

// damage says why a checkpoint cannot be used, and since when that is known.
func (r checkpointReport) damage() string {
	if r.DamagedAt.IsZero() {
		return r.Error
	}
	return r.Error + " (found " + r.DamagedAt.Local().Format(time.DateTime) + ")"
}

// damagedOf returns an error if a checkpoint that was shown is damaged.
func damagedOf(reports ...checkpointReport) error {
	var names []string
	for _, r := range reports {
		if r.Error != "" {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return errors.New("damaged: checkpoint " + strings.Join(names, ", "))
}

func writeCheckpoints(out io.Writer, reports []checkpointReport) {
	table := newTable("CHECKPOINT", "AGE", "SIZE", "ALONE", "NEW", "PAUSE", "GPUS", "DRIVER", "MARKS", "HERE")
	for _, r := range reports {
		here := "no: " + r.WhyNotHere
		switch {
		case r.Error != "":
			here = "no: " + r.damage()
		case r.GivenUp != "":
			here = "given up for an older one: " + r.GivenUp
		case r.Here && r.WhyNotHere != "":
			here = "yes, but not now: " + r.WhyNotHere
		case r.Here:
			here = "yes"
		}
		if r.CreatedAt.IsZero() {
			table.row(r.Name, "-", "-", "-", "-", "-", "-", "-", "damaged", here)
			continue
		}
		table.row(r.Name, ago(r.CreatedAt), units.Size(r.Bytes), units.Size(r.AloneBytes), units.Size(r.NewBytes),
			seconds(r.PauseSeconds), models(r.GPUs), cmp.Or(r.Driver, "-"), marks(r), here)
	}
	table.write(out)
}

func reportOf(c store.Checkpoint) checkpointReport {
	r := checkpointReport{
		Name: c.Name, Dir: c.Dir, CreatedAt: c.CreatedAt, Bytes: c.Bytes, AloneBytes: c.Bytes - c.Shared, NewBytes: c.New,
		PauseSeconds: c.Pause.Seconds(), Reason: c.Reason, Host: c.Host, Driver: c.Driver, GPUs: append([]cudackpt.GPU{}, c.GPUs...),
		GivenUp: c.GivenUp, Verified: c.Verified, Pinned: c.Pinned, Jobs: c.Jobs, Trial: c.Trial,
	}
	switch {
	case c.Err != nil:
		r.Error = c.Err.Error()
	case c.Damage != nil:
		r.Error, r.DamagedAt = c.Damage.Why, c.Damage.At
	}
	return r
}

// takes says whether this host can take a checkpoint: its GPUs and its driver. Memory that is not
// free now may be the job's own.
func takes(ctx context.Context, hook *hooks.Hook, c store.Checkpoint) (bool, string) {
	findings, err := checkpoint.CheckGPUs(ctx, hook, c.Dir)
	if err != nil {
		return false, err.Error()
	}
	var texts []string
	here := true
	for _, f := range hook.Judge(findings).Of(preflight.SeverityError) {
		here = here && f.Name == preflight.FindingGPUMemory
		texts = append(texts, strings.TrimSuffix(f.Message+": "+f.Remedy, ": "))
	}
	return here, strings.Join(texts, "; ")
}

// models names GPUs by their number and model, such as "2 × NVIDIA H100".
func models(gpus []cudackpt.GPU) string {
	count := make(map[string]int)
	for _, gpu := range gpus {
		count[gpu.Model]++
	}
	var parts []string
	for model, n := range count {
		parts = append(parts, fmt.Sprintf("%d × %s", n, cmp.Or(model, "-")))
	}
	slices.Sort(parts)
	return cmp.Or(strings.Join(parts, ", "), "-")
}

func marks(r checkpointReport) string {
	var marks []string
	if r.Error != "" {
		marks = append(marks, "damaged")
	}
	if r.Verified {
		marks = append(marks, "verified")
	}
	if len(r.Jobs) > 0 {
		marks = append(marks, "started "+units.Count(len(r.Jobs), "job"))
	}
	if r.Pinned {
		marks = append(marks, "pinned")
	}
	if r.Trial != nil {
		marks = append(marks, string(r.Trial.Outcome))
	}
	return cmp.Or(strings.Join(marks, ","), "-")
}

// jobReport is a job, and one of its checkpoints, in JSON.
type jobReport struct {
	Job        jobs.Local         `json:"job"`
	Command    []string           `json:"command"`
	Options    []string           `json:"options"`         // of cucriu run, that are not as by default
	Image      string             `json:"image,omitempty"` // that the job was started from
	User       string             `json:"user"`
	Log        string             `json:"log,omitempty"`     // the job's output; empty if there is none
	JobPID     int                `json:"job_pid,omitempty"` // of the command; 0 if it does not run here
	DiskBytes  int64              `json:"disk_bytes"`        // of all checkpoints
	Owner      *store.Owner       `json:"owner,omitempty"`
	Checkpoint *checkpointReport  `json:"checkpoint,omitempty"`
	Findings   preflight.Findings `json:"findings,omitempty"`
	// Tails are what resumes have kept of the job's files.
	Tails []files.Kept `json:"tails,omitempty"`
}

func jobsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show DIR|NAME [CHECKPOINT]",
		Short: "Show a long job and one of its checkpoints: the newest, if none is named",
		Long: `
The checkpoint is checked as cucriu run checks it before resuming from it: all files
except the GPU pages are read and compared with their checksums, and whether this
host can restore it is determined. Nothing is changed. The exit status is 1 if it is
damaged, or if the job's directory was moved, copied or lacks its checkpoints.`,
		Example:           "  cucriu jobs show train\n  cucriu jobs show /var/lib/jobs/train 000012",
		Args:              jobArgument(0, 1),
		ValidArgsFunction: completeJob(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := viewJob(args)
			if err != nil {
				return err
			}
			report := jobReport{Job: v.job}
			report.describe()
			if report.DiskBytes, err = v.store.DiskBytes(); err != nil {
				return err
			}
			if report.Tails, err = jobs.Tails(v.job.Dir); err != nil {
				return err
			}
			if owner, err := v.store.Owner(); err == nil && owner.Generation > 0 {
				report.Owner = &owner
			}
			broken := errors.Join(jobs.CheckMade(v.job), jobs.CheckRecord(v.job.Dir))
			if n := len(v.picked); n > 0 {
				c := v.picked[n-1]
				r := reportOf(c)
				if err := v.store.Check(cmd.Context(), c); err != nil && c.Damage == nil {
					r.Error = err.Error()
				} else if err == nil && c.Damage == nil && broken == nil {
					r.Here, r.WhyNotHere = takes(cmd.Context(), v.hook, c)
					if report.Findings, err = jobs.CheckRestore(cmd.Context(), v.hook, c.Dir); err != nil {
						return err
					}
					report.Findings = v.hook.Judge(report.Findings)
				}
				report.Checkpoint = &r
			}
			err = errors.Join(show(cmd, report, func(out io.Writer) { writeJob(out, report) }), broken)
			if report.Checkpoint != nil {
				err = errors.Join(err, damagedOf(*report.Checkpoint))
			}
			return err
		},
	}
	jsonFlag(cmd)
	return cmd
}

// describe says how the job was started, as far as its directory knows.
func (r *jobReport) describe() {
	of, _ := jobs.Describe(r.Job.Dir) // a record that cannot be read is told of below
	options, _ := jobs.Flags(r.Job.Dir)
	r.Command, r.Options, r.User = append([]string{}, of.Command...), append([]string{}, options...), "root" // not nil: null is no list in JSON
	r.Image = of.Image
	if of.Adopted {
		r.User = cmp.Or(of.User, "-")
	}
	for _, option := range options {
		if name, is := strings.CutPrefix(option, "--user="); is {
			r.User = name
		}
	}
	r.Log = existing(filepath.Join(r.Job.Dir, jobs.OutputLog))
	if command := r.Job.Command; command != nil && !command.Elsewhere() && command.Alive() {
		r.JobPID = command.PID
	}
}

func writeJob(out io.Writer, report jobReport) {
	writeJobs(out, []jobs.Local{report.Job})
	about := newTable("", "")
	about.lines = nil
	about.row("command", cmp.Or(strings.Join(report.Command, " "), "-"))
	if len(report.Options) > 0 {
		about.row("options", strings.Join(report.Options, " "))
	}
	if report.Image != "" {
		about.row("image", report.Image)
	}
	about.row("user", report.User)
	about.row("output", cmp.Or(report.Log, "-"))
	if report.JobPID != 0 {
		about.row("pid", fmt.Sprintf("%d, of the command", report.JobPID))
	}
	if report.Job.Restarts > 0 {
		about.row("restarts", strconv.Itoa(report.Job.Restarts))
	}
	about.write(out)
	if report.Owner != nil && !report.Owner.Released {
		fmt.Fprintf(out, "owned by %v\n", report.Owner)
	}
	fmt.Fprintf(out, "all checkpoints take %s\n", units.Size(report.DiskBytes))
	if len(report.Tails) > 0 {
		var bytes int64
		for _, kept := range report.Tails {
			bytes += kept.Bytes
		}
		text := fmt.Sprintf("backups of newer content of the job's files, kept at resumes: %s in %s, the last %s; cucriu jobs prune --tails removes them",
			units.Size(bytes), units.Count(len(report.Tails), "file"), report.Tails[len(report.Tails)-1].Path)
		fmt.Fprintln(out, strings.Join(wrap(text, widthOf(textColumns)), "\n"))
	}
	fmt.Fprintln(out)
	r := report.Checkpoint
	if r == nil {
		fmt.Fprintln(out, "there is no checkpoint")
		return
	}
	fmt.Fprintf(out, "checkpoint %s in %s\n", r.Name, r.Dir)
	if r.Error != "" {
		fmt.Fprintln(out, strings.Join(wrap("damaged: "+r.damage(), widthOf(textColumns)), "\n"))
		return
	}
	table := newTable("", "")
	table.lines = nil
	table.row("made", r.CreatedAt.Local().Format(time.DateTime)+" on "+r.Host+", for: "+cmp.Or(r.Reason, "-"))
	table.row("size", fmt.Sprintf("%s, of which %s alone and %s new", units.Size(r.Bytes), units.Size(r.AloneBytes), units.Size(r.NewBytes)))
	table.row("pause", seconds(r.PauseSeconds))
	table.row("GPUs", models(r.GPUs)+", driver "+cmp.Or(r.Driver, "-"))
	table.row("marks", marks(*r))
	if r.Trial != nil {
		table.row("trial", r.Trial.String())
	}
	table.write(out)
	if len(report.Findings) > 0 {
		fmt.Fprintln(out)
		writeFindings(out, report.Findings)
	}
}
