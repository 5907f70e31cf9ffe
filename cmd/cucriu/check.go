package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/job"
	"cucriu/internal/kit/twice"
	"cucriu/internal/kit/units"
)

func checkCommand() *cobra.Command {
	var (
		pid       int
		dir, criu string
		force     []string
	)
	cmd := &cobra.Command{
		Use:        "check",
		SuggestFor: []string{"doctor"},
		Short:      "Check whether a dump or a restore would be refused",
		Long: `
Without options it checks this machine: the driver, criu, the kernel, and the
privileges of this process. With -t it also checks a process tree, as a dump would;
with -t and -D, also whether the image can be written to DIR and fits. With -D alone
it checks an image, and whether this machine can restore it: its pids must be free.
The pages of the image are not read, which cucriu verify does. Nothing is changed.

Managed memory cannot be detected from outside: the driver refuses to checkpoint
it, and the job keeps running.

The exit status is 0 if there is no blocking finding, 3 if there is one, and 1 if the
check itself failed. --force turns an error into a warning; these can be
forced: ` + strings.Join(preflight.Forceable(), ", ") + `.`,
		Example: "  cucriu check\n  cucriu check -t 4711 -D /var/lib/images/job1\n  cucriu check -D /var/lib/images/job1",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pid != 0 {
				if err := requireRoot(cmd); err != nil {
					return err
				}
			}
			hook, err := newHook()
			if err != nil {
				return err
			}
			hook.Force = force
			findings, err := checkpoint.CheckMachine(cmd.Context(), hook, criu)
			if err != nil {
				return err
			}
			var more preflight.Findings
			switch {
			case pid != 0:
				long := longJobFindings(hook, pid)
				if hook.Judge(long).Err() == nil { // else the rest would only follow from it
					more, err = checkpoint.CheckDump(cmd.Context(), hook, pid, dir, criu)
				}
				more = append(long, more...)
			case dir != "":
				err = cmp.Or(job.RefuseDirectory(dir), twice.RefuseKept(dir, twice.Start{}))
				if err = preflight.AsRefusal(err); err == nil {
					more, err = jobs.CheckRestore(cmd.Context(), hook, dir)
				}
			}
			if err != nil && findings.Err() == nil { // else what this machine lacks is the cause
				return err
			}
			// A job or an image that fails because of the machine's driver reports this again.
			more = slices.DeleteFunc(more, func(f preflight.Finding) bool { return slices.Contains(findings, f) })
			findings = hook.Judge(append(findings, more...))
			blocked := verdict(findings)
			err = show(cmd, findings, func(out io.Writer) {
				if blocked == nil {
					fmt.Fprintln(out, checked(pid, dir, len(findings.Of(preflight.SeverityWarning))))
				}
				writeFindings(out, findings)
			})
			return errors.Join(err, blocked)
		},
	}
	pidFlag(cmd, &pid, "tree", "t", "the root process of a job")
	folderFlag(cmd, &dir, "images-dir", "D", "with -t: where the image would be written; alone: the image to check")
	criuFlag(cmd, &criu, "path of the criu to check")
	forceFlag(cmd, &force)
	jsonFlag(cmd)
	return cmd
}

// longJobFindings refuse a dump of a process of a long job, which only its supervisor can dump.
func longJobFindings(hook *hooks.Hook, pid int) preflight.Findings {
	l, meaning, err := jobs.Involving(hook.Config.RunDir, pid, true)
	if err != nil || l == nil {
		return nil // what cannot be told is not refused here: a dump looks at the processes
	}
	remedy := fmt.Sprintf("cucriu jobs checkpoint %s makes a checkpoint, cucriu jobs stop %[1]s ends it with one", l.Name)
	if l.State == jobs.StatePaused {
		remedy = "cucriu jobs resume " + l.Name
	}
	f := preflight.New(preflight.FindingContainer, meaning, remedy)
	f.PID = pid
	return preflight.Findings{f}
}

// checked says what can be done when nothing blocks it.
func checked(pid int, dir string, warnings int) string {
	text := "this machine can dump and restore"
	switch {
	case pid != 0:
		text = fmt.Sprintf("process %d can be dumped", pid)
	case dir != "":
		text = dir + " can be restored here"
	}
	if warnings > 0 {
		text += ", with " + units.Count(warnings, "warning")
	}
	if pid == 0 && dir != "" {
		text += "; its pages were not read: cucriu verify " + dir + " does"
	}
	return text
}

func writeFindings(out io.Writer, findings preflight.Findings) {
	table := newTable("SEVERITY", "PROCESS", "FINDING", "WHAT -> REMEDY")
	for _, f := range findings {
		process := "-"
		if f.PID != 0 {
			process = strings.TrimPrefix(f.Subject(), "process ")
		}
		severity := string(f.Severity)
		if f.Forced {
			severity += " (forced)"
		}
		table.row(severity, process, f.Name, f.Message)
		if f.Remedy != "" {
			table.row("", "", "", "-> "+f.Remedy)
		}
	}
	table.write(out)
}

// verdict returns an error if the findings, which have been printed, contain errors.
func verdict(findings preflight.Findings) error {
	var names []string
	all := findings.Of(preflight.SeverityError)
	if len(all) == 0 {
		return nil
	}
	for _, f := range all {
		if !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
	}
	return preflight.AsRefusal(fmt.Errorf("%s: %s", units.Count(len(all), "blocking finding"), strings.Join(names, ", ")))
}
