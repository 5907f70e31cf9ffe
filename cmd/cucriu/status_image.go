package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/jobs"
	"cucriu/hooks/journal"
)

// imagePatience is how long to wait for a dump or restore that is not over: the watcher needs a
// moment once criu has ended.
const imagePatience = 10 * time.Second

// showImage shows what became of an image, which need not be there any more.
func showImage(cmd *cobra.Command, runDir, dir string, asJSON bool) error {
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
		if r, err = imageReportOf(runDir, dir); err != nil {
			return err
		}
		if verdict = r.verdict(dir); !errors.Is(verdict, hooks.ErrNotBack) || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), r)
	} else {
		err = writeImageReport(cmd.OutOrStdout(), r)
	}
	return errors.Join(err, verdict)
}

func imageReportOf(runDir, dir string) (statusReport, error) {
	sessions, err := hooks.Sessions(runDir)
	if err != nil {
		return statusReport{}, err
	}
	refusals, err := journal.Refusals(runDir)
	return statusReport{
		Sessions:  slices.DeleteFunc(sessions, func(s hooks.Status) bool { return s.ImageDir != dir }),
		Refusals:  slices.DeleteFunc(refusals, func(r journal.Refusal) bool { return r.ImageDir != dir }),
		Processes: []hooks.CUDAProcess{}, Jobs: []jobs.Local{},
	}, err
}

// verdict returns an error unless the last dump into an image, or restore from it, has succeeded.
func (r statusReport) verdict(dir string) error {
	var last hooks.Status
	if n := len(r.Sessions); n > 0 {
		last = r.Sessions[n-1]
	}
	var refusal journal.Refusal
	for _, next := range r.Refusals {
		if next.Last.After(refusal.Last) {
			refusal = next
		}
	}
	switch {
	case refusal.Last.After(last.Begun):
		return refusedError{fmt.Errorf("the last %s was refused, %s: %s", refusal.Kind, refusal.Last.Local().Format(time.DateTime), refusal.Text())}
	case last.Session == "":
		return refusedError{fmt.Errorf("no dump into %s and no restore from it is known on this host: a job without CUDA is criu's alone", dir)}
	case last.Outcome == "":
		return fmt.Errorf("%s: %w: it is at step %s", last.Session, hooks.ErrNotBack, last.Step)
	case last.Kind == journal.KindDump && last.Step == journal.StepDumped, last.Kind == journal.KindRestore && last.Outcome == journal.OutcomeRunning,
		last.Kind == journal.KindRestore && last.Outcome == journal.OutcomeStopped:
		return nil
	}
	return errors.New("the last " + string(last.Kind) + " did not succeed: " + last.Message)
}

func writeImageReport(out io.Writer, r statusReport) error {
	var err error
	if len(r.Sessions) > 0 {
		err = writeSessions(out, r.Sessions)
	}
	if len(r.Sessions) > 0 && len(r.Refusals) > 0 {
		fmt.Fprintln(out)
	}
	if len(r.Refusals) > 0 {
		err = errors.Join(err, writeRefusals(out, r.Refusals))
	}
	return err
}
