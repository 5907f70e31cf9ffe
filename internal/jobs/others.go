package jobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// The command of a job may end while other processes of the job run: servers that it has started, and what it
// has put into the background. The job's first process stays for them. Unless the user wants all of them to be
// waited for, they are ended as batch systems do.

// othersGrace is how long they have between SIGTERM and SIGKILL.
const othersGrace = 10 * time.Second

// others opens the processes of the job beside its first process. There are none if the command is the root.
func (in *instance) others() (all []*proc.Process) {
	if in.root == nil || in.command != nil && in.command.PID == in.root.PID {
		return nil
	}
	pids, err := proc.Tree(in.root.PID)
	if err != nil {
		return nil // it has ended
	}
	for _, pid := range pids[1:] {
		if p, err := proc.Open(pid); err == nil { // a zombie is gone
			all = append(all, p)
		}
	}
	return all
}

// namesOf names processes, the first few of them.
func namesOf(all []*proc.Process) string {
	const most = 8
	var names []string
	for _, p := range all[:min(len(all), most)] {
		if status, err := proc.ReadStatus(p.PID); err == nil {
			names = append(names, fmt.Sprintf("%d (%s)", p.PID, proc.Printable(status.Name)))
		}
	}
	if more := len(all) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// tellOthers waits for the end of the command, and says for whom the job waits then.
func (in *instance) tellOthers(ctx context.Context, root, command *proc.Process) {
	if root == nil {
		return
	}
	if command != nil {
		awaitEnd(ctx, command)
	}
	look := instance{root: root}
	if all := look.others(); len(all) > 0 && ctx.Err() == nil {
		in.say(fmt.Sprintf("the command of %s has ended, and the job waits for its other processes (--wait-all): %s", in.name, namesOf(all)))
		proc.CloseAll(all)
	}
}

// rootEnds reports whether the job's root process has ended, or does so at once because nothing is left below
// it.
func (in *instance) rootEnds() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return in.root == nil || in.root.WaitExit(ctx) == nil
}

// endOthers ends what runs of a job whose command has ended.
func (in *instance) endOthers(ctx context.Context) {
	if in.waitAll || in.rootEnds() {
		return
	}
	all := in.others()
	if len(all) > 0 {
		in.say(fmt.Sprintf("the command of %s has ended while other processes of the job run, which are ended (--wait-all waits for them): %s", in.name, namesOf(all)))
	}
	_ = proc.SignalAll(unix.SIGTERM, all...)
	_ = proc.SignalAll(unix.SIGCONT, append(all, in.root)...) // who is stopped could not react
	proc.CloseAll(all)
	grace, cancel := context.WithTimeout(ctx, othersGrace)
	defer cancel()
	if in.root.WaitExit(grace) == nil || errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	for begin := time.Now(); time.Since(begin) < exitPatience && ctx.Err() == nil; {
		all := in.others()
		_ = proc.SignalAll(unix.SIGKILL, all...)
		proc.CloseAll(all)
		if in.rootEnds() {
			return
		}
	}
}
