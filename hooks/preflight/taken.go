package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cucriu/criuutil/proc"
)

// reapTime is how long [TakenPIDs] waits for a zombie to be reaped: right after a dump that has
// ended the job, its parent may not have come to it yet.
const reapTime = time.Second

// TakenPIDs refuses a restore that needs pids which are in use on this host. criu finds that only
// when it creates the processes. It is a check: a number that is free now may be taken by then.
func TakenPIDs(ctx context.Context, needed []int) (Findings, error) {
	inner, err := proc.IsInInnerPIDNamespace()
	if err != nil || inner {
		return nil, err // what /proc shows are other pids than those that criu will get
	}
	ctx, cancel := context.WithTimeout(ctx, reapTime)
	defer cancel()
	for {
		holders, err := proc.HoldersOf(needed)
		if err != nil {
			return nil, err
		}
		ended := false
		for _, holder := range holders {
			ended = ended || holder.Ended
		}
		if !ended {
			return takenFindings(holders), nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return takenFindings(holders), nil
		case <-time.After(10 * time.Millisecond): // nobody but its parent is told that it was reaped
		}
	}
}

// takenFindings makes one finding for each process that has something which a restore needs.
func takenFindings(holders map[int]proc.Holder) Findings {
	numbers := make(map[int][]int) // by the pid of the process
	for id, holder := range holders {
		numbers[holder.PID] = append(numbers[holder.PID], id)
	}
	var findings Findings
	for pid, ids := range numbers {
		slices.Sort(ids)
		first := ids[0]
		if _, own := holders[pid]; own {
			first = pid
		}
		holder := holders[first]
		f := Finding{
			Name: FindingPIDTaken, Severity: SeverityError, PID: pid, Process: holder.Name,
			Message: fmt.Sprintf("has the %s %d, which a process of the image must get again", holder.As, first),
			Remedy:  "if it is the job itself, which still runs, end it first; else wait until it has ended, or end it",
		}
		if n := len(ids) - 1; n > 0 {
			f.Message += fmt.Sprintf(" (and %d more numbers of the image)", n)
		}
		if holder.Ended {
			f.Message = fmt.Sprintf("has ended, but keeps the %s %d, which a process of the image must get again, until its parent, process %d, waits for it", holder.As, first, holder.PPID)
			f.Remedy = "wait for that, or end the parent"
		}
		findings = append(findings, f)
	}
	slices.SortFunc(findings, func(a, b Finding) int { return a.PID - b.PID })
	return findings
}
