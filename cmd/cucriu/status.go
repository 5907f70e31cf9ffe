package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/journal"
)

// statusReport is the status command's JSON.
type statusReport struct {
	Sessions  []hooks.Status      `json:"sessions"`
	Refusals  []journal.Refusal   `json:"refusals"`
	Processes []hooks.CUDAProcess `json:"processes"`
	Jobs      []jobs.Local        `json:"jobs"` // the long ones
}

func statusCommand() *cobra.Command {
	var asJSON, uuids bool
	var dir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the CUDA processes of this host, its long jobs, and what became of its dumps and restores",
		Long: `Show the CUDA processes of this host, its long jobs, its dumps and restores, and
what became of them.

GPUs are shown by their index in cucriu gpus. The last dumps and restores that
were refused are shown until the same one is begun, for a week at most.

With -D, only what is about an image is shown. The exit status is 0 then if the
last dump into it, or restore from it, has succeeded, whoever drove criu; 1 if
not; 3 if it was refused or none is known; 4 if it is not over within 10 s.`,
		Example: "  cucriu status\n  cucriu status --json\n  cucriu status -D /var/lib/images/job1",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hook, err := newHook()
			if err != nil {
				return err
			}
			if dir != "" {
				return showImage(cmd, hook.Config.RunDir, dir, asJSON)
			}
			sessions, err := hooks.Sessions(hook.Config.RunDir)
			if err != nil {
				return err
			}
			refusals, err := journal.Refusals(hook.Config.RunDir)
			if err != nil {
				return err
			}
			long, err := jobs.Locals(hook.Config.RunDir)
			if err != nil {
				return err
			}
			processes, err := hook.Processes(cmd.Context())
			if asJSON {
				return errors.Join(writeJSON(cmd.OutOrStdout(), statusReport{sessions, refusals, processes, long}), err)
			}
			out := cmd.OutOrStdout()
			if err == nil {
				err = writeAll(out, hook, processes, uuids)
				fmt.Fprintln(out)
			}
			if len(long) > 0 {
				err = errors.Join(err, writeJobs(out, long))
				fmt.Fprintln(out)
			}
			err = errors.Join(err, writeSessions(out, sessions))
			if len(refusals) > 0 {
				fmt.Fprintln(out)
				err = errors.Join(err, writeRefusals(out, refusals))
			}
			return err
		},
	}
	cmd.Flags().VarP((*folderValue)(&dir), "images-dir", "D", "only what is about this image, and its exit status")
	jsonFlag(cmd, &asJSON)
	uuidFlag(cmd, &uuids)
	return cmd
}

// writeAll shows the CUDA processes of the host. Without any, no driver is needed.
func writeAll(out io.Writer, hook *hooks.Hook, processes []hooks.CUDAProcess, uuids bool) error {
	if len(processes) == 0 {
		_, err := fmt.Fprintln(out, "no process of this host uses CUDA")
		return err
	}
	return writeProcesses(out, indexOfHost(hook), processes, uuids)
}

// writeSessions shows each session in a row, with what there is to say of it below.
func writeSessions(out io.Writer, sessions []hooks.Status) error {
	if len(sessions) == 0 {
		_, err := fmt.Fprintln(out, "no dump, restore or suspend is known")
		return err
	}
	table := newTable(out, "BEGUN", "SESSION", "PROCESSES", "OUTCOME")
	for _, s := range sessions {
		outcome := string(s.Outcome)
		if outcome == "" {
			outcome = "open: " + string(s.Step)
		}
		table.row(s.Begun.Local().Format(time.DateTime), s.Session, somePIDs(s.PIDs()), outcome)
		if s.Elsewhere {
			table.below("left alone: of another pid namespace")
		}
		if dir := existing(s.ImageDir); dir != "" && !strings.Contains(s.Message, dir) {
			table.below("image " + dir)
		}
		if s.Message != "" {
			table.below(s.Message)
		}
	}
	return table.write(out)
}

func writeRefusals(out io.Writer, refusals []journal.Refusal) error {
	table := newTable(out, "REFUSED", "KIND", "TIMES", "PROCESS", "IMAGE")
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
		table.below(r.Text())
	}
	return table.write(out)
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
