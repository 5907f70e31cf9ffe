package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/imagedir"
)

// statusReport is the status command's JSON.
type statusReport struct {
	Sessions  []checkpoint.Status      `json:"sessions"`
	Refusals  []checkpoint.Refusal     `json:"refusals"`
	Processes []checkpoint.CUDAProcess `json:"processes"`
	Jobs      []jobs.Local             `json:"jobs"` // the long ones
}

func statusCommand() *cobra.Command {
	var uuids, all bool
	var dir string
	cmd := &cobra.Command{
		Use:        "status",
		SuggestFor: []string{"ps"},
		Short:      "Show the CUDA processes of this host, its long jobs, and what became of its dumps and restores",
		Long: `Show the CUDA processes of this host, its long jobs, its dumps and restores, and
what became of them.

GPUs are shown by their index in cucriu gpus. Dumps and restores of more than a day
ago are only counted, unless they are still open; --all and --json list them. One that
was refused is listed until the same one is begun, for a week at most.

With -D, all sessions of an image are shown, and nothing else. The exit status is 0 then if the
last dump into it, or restore from it, has succeeded, no matter who ran criu; 1 if
not; 3 if it was refused or none is known; 4 if it has not finished within 10 s.`,
		Example: "  cucriu status\n  cucriu status --json\n  cucriu status -D /var/lib/images/job1",
		Args:    noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			if dir != "" {
				return showImage(cmd, hook.Config.RunDir, dir)
			}
			r, err := statusOf(hook.Config.RunDir)
			if err != nil {
				return err
			}
			if r.Jobs, err = jobs.Locals(hook.Config.RunDir); err != nil {
				return err
			}
			r.Processes, err = checkpoint.Processes(cmd.Context(), hook)
			return errors.Join(show(cmd, r, func(out io.Writer) {
				switch {
				case err != nil:
				case len(r.Processes) == 0: // then no driver is needed
					fmt.Fprint(out, "no process of this host uses CUDA\n\n")
				default:
					writeProcesses(out, indexOfHost(hook), r.Processes, uuids)
					fmt.Fprintln(out)
				}
				if len(r.Jobs) > 0 {
					writeJobs(out, r.Jobs)
					fmt.Fprintln(out)
				}
				switch {
				case len(r.Sessions) > 0:
				case len(r.Refusals) > 0:
					fmt.Fprint(out, "no dump, restore or suspend is known\n\n")
				default:
					fmt.Fprintln(out, "no dump, restore or suspend is known")
				}
				older := 0
				if !all {
					older = r.dropOlder(time.Now().Add(-listed))
				}
				r.writeSessions(out)
				if older > 0 {
					fmt.Fprintf(out, "\nolder than a day, and not listed: %d (--all lists them)\n", older)
				}
			}), err)
		}),
	}
	folderFlag(cmd, &dir, "images-dir", "D", "show only this image's sessions, and exit with its status")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list dumps and restores of more than a day ago")
	jsonFlag(cmd)
	uuidFlag(cmd, &uuids)
	return cmd
}

// listed is how long what has ended, or was refused, is listed.
const listed = 24 * time.Hour

// dropOlder drops what is over and was begun before a time, and returns how much that was.
func (r *statusReport) dropOlder(before time.Time) int {
	n := len(r.Sessions) + len(r.Refusals)
	r.Sessions = slices.DeleteFunc(r.Sessions, func(s checkpoint.Status) bool { return s.Outcome != "" && s.Begun.Before(before) })
	r.Refusals = slices.DeleteFunc(r.Refusals, func(r checkpoint.Refusal) bool { return r.Last.Before(before) })
	return n - len(r.Sessions) - len(r.Refusals)
}

// writeSessions shows each session in a row, with what there is to say of it below.
func writeSessions(out io.Writer, sessions []checkpoint.Status) {
	table := newTable("BEGUN", "SESSION", "PROCESSES", "OUTCOME")
	for _, s := range sessions {
		outcome := string(s.Outcome)
		if outcome == "" {
			outcome = "open: " + s.Step
		}
		table.row(s.Begun.Local().Format(time.DateTime), s.Session, somePIDs(s.PIDs()), outcome)
		if s.Elsewhere {
			table.below("left alone: in another pid namespace")
		}
		if dir := existing(s.ImageDir); dir != "" && !strings.Contains(s.Message, dir) {
			table.below("image " + dir)
		}
		if s.Message != "" {
			table.below(s.Message)
		}
	}
	table.write(out)
}

func writeRefusals(out io.Writer, refusals []checkpoint.Refusal) {
	table := newTable("REFUSED", "KIND", "TIMES", "PROCESS", "IMAGE")
	for _, r := range refusals {
		process, dir := "-", "-"
		if r.RootPID != 0 {
			process = strconv.Itoa(r.RootPID)
		}
		if r.Process != "" {
			process += " (" + r.Process + ")"
		}
		if found := existing(r.ImageDir); found != "" {
			dir = found
		}
		table.row(r.Last.Local().Format(time.DateTime), string(r.Kind), strconv.Itoa(r.Times), process, dir)
		table.below(r.Text)
	}
	table.write(out)
}

// somePIDs lists as many pids as there is room for, in the form that -p takes.
func somePIDs(pids []int) string {
	const room = 20
	if len(pids) == 0 {
		return "-"
	}
	text := strconv.Itoa(pids[0])
	for i, pid := range pids[1:] {
		more := text + "," + strconv.Itoa(pid)
		if len(more) > room {
			return fmt.Sprintf("%s +%d", text, len(pids)-1-i)
		}
		text = more
	}
	return text
}

// existing returns a path if something is there, else "": a dump that failed leaves no image,
// and an image may have been moved.
func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// imagePatience is how long to wait for a dump or restore that has not finished: the watcher needs a
// moment once criu has ended.
const imagePatience = 10 * time.Second

// showImage shows what became of an image, which need not be there any more.
func showImage(cmd *cobra.Command, runDir, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // as the hook finds it
		dir = real
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), imagePatience)
	defer cancel()
	var r statusReport
	var verdict error
	for {
		if r, err = statusOf(runDir); err != nil {
			return err
		}
		r.Sessions = slices.DeleteFunc(r.Sessions, func(s checkpoint.Status) bool { return imagedir.FinalName(s.ImageDir) != dir })
		r.Refusals = slices.DeleteFunc(r.Refusals, func(r checkpoint.Refusal) bool { return r.ImageDir != dir })
		r.Processes, r.Jobs = []checkpoint.CUDAProcess{}, []jobs.Local{}
		if verdict = r.verdict(dir); !errors.Is(verdict, hooks.ErrNotBack) || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.Join(show(cmd, r, r.writeSessions), verdict)
}

func statusOf(runDir string) (r statusReport, err error) {
	if r.Sessions, err = checkpoint.Sessions(runDir); err == nil {
		r.Refusals, err = checkpoint.Refusals(runDir)
	}
	return r, err
}

// verdict returns an error unless the last dump into an image, or restore from it, has succeeded.
func (r statusReport) verdict(dir string) error {
	var last checkpoint.Status
	if n := len(r.Sessions); n > 0 {
		last = r.Sessions[n-1]
	}
	var refusal checkpoint.Refusal
	for _, next := range r.Refusals {
		if next.Last.After(refusal.Last) {
			refusal = next
		}
	}
	succeeded := last.Dumped() || last.Kind == checkpoint.KindRestore &&
		slices.Contains([]checkpoint.Outcome{checkpoint.OutcomeRunning, checkpoint.OutcomeStopped}, last.Outcome)
	since := last.Begun
	if succeeded { // a restore that was refused while the dump was at work is settled by it
		for _, phase := range last.Phases {
			since = slices.MaxFunc([]time.Time{since, last.Begun.Add(phase.End())}, time.Time.Compare)
		}
	}
	switch {
	case refusal.Last.After(since):
		return preflight.AsRefusal(fmt.Errorf("the last %s was refused, %s: %s", refusal.Kind, refusal.Last.Local().Format(time.DateTime), refusal.Text))
	case last.Session == "":
		meaning := fmt.Sprintf("no dump into %s or restore from it is known here", dir)
		if _, err := image.Open(dir).Manifest(); err == nil {
			const why = ", but it holds an image, which was moved or copied, or is older than the sessions known here"
			return preflight.AsRefusal(fault.New(meaning+why, "cucriu verify "+dir+" says whether it is complete"))
		}
		return preflight.AsRefusal(errors.New(meaning + ": it was never started, or cancelled, or the job had no CUDA"))
	case last.Outcome == "":
		return fmt.Errorf("%s: %w: it is at step %s", last.Session, hooks.ErrNotBack, last.Step)
	case succeeded:
		return nil
	}
	return errors.New("the last " + string(last.Kind) + " did not succeed: " + last.Message)
}

// writeSessions shows the sessions and the refusals.
func (r statusReport) writeSessions(out io.Writer) {
	if len(r.Sessions) > 0 {
		writeSessions(out, r.Sessions)
	}
	if len(r.Sessions) > 0 && len(r.Refusals) > 0 {
		fmt.Fprintln(out)
	}
	if len(r.Refusals) > 0 {
		writeRefusals(out, r.Refusals)
	}
}
