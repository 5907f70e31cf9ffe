package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/self"
)

// instance is the job as it runs on this host.
type instance struct {
	*reporter
	criu    string
	sandbox *sandbox.Sandbox // nil if there is none
	root    *proc.Process    // the job's root process, of which a dump is made; nil if it has ended
	command *proc.Process    // the command's, which gets the signals; nil if that has ended
	waitAll bool             // the job ends with its last process, and not with its command
	runsOn  bool             // the job, if we end now
	held    *held            // the signals that wait
}

// held are signals for a job that is dumped. It gets them afterwards: else they would be in the image, too.
type held struct {
	sync.Mutex
	is      bool // a dump is under way
	signals []unix.Signal
}

// hold has signals to the job wait until over is called.
func (in *instance) hold() (over func()) {
	in.held.Lock()
	defer in.held.Unlock()
	in.held.is = true
	return func() {
		in.held.Lock()
		signals := in.held.signals
		in.held.is, in.held.signals = false, nil
		in.held.Unlock()
		for _, sig := range signals {
			in.pass(sig, false)
		}
	}
}

// keeps keeps a signal for a job that is held, and reports whether it does.
func (in *instance) keeps(sig unix.Signal) bool {
	in.held.Lock()
	defer in.held.Unlock()
	if in.held.is {
		in.held.signals = append(in.held.signals, sig)
	}
	return in.held.is
}

// openRoot opens the job's root process, and that of its command. It is no error if they have ended.
func (in *instance) openRoot() (err error) {
	if in.root, err = in.sandbox.OpenRoot(); err == nil {
		in.command, err = in.sandbox.OpenCommand(in.root)
	}
	if errors.Is(err, proc.ErrGone) {
		return nil
	}
	return err
}

// leader is the process with whose end the job ends; nil if it has ended.
func (in *instance) leader() *proc.Process {
	if in.waitAll {
		return in.root
	}
	return in.command
}

// close closes what is held of the job, and notes whether the job keeps running.
func (in *instance) close() {
	for _, p := range []*proc.Process{in.root, in.command} {
		if p != nil {
			p.Close()
		}
	}
	if in.sandbox != nil {
		in.runsOn = in.sandbox.Alive()
		in.sandbox.Close()
	}
	in.sandbox, in.root, in.command = nil, nil, nil
}

// isExiting reports whether the job has ended or is about to.
func (in *instance) isExiting() bool {
	leader := in.leader()
	return leader == nil || leader.Exiting() || in.root.Exiting()
}

// setLeaving records whether the job is to leave this host: how it ends then is no fault of it.
func (in *instance) setLeaving(is bool) {
	if err := in.sandbox.SetLeaving(is); err != nil {
		in.say(fmt.Sprintf("the sandbox's record could not be written: %v", err))
	}
}

// ask has a request served in the sandbox.
func (in *instance) ask(ctx context.Context, r inside.Request) (a inside.Answer, err error) {
	if r.Op == inside.Dump || r.Op == inside.Check {
		if r.Mounts, err = in.sandbox.MountsOfJob(); err != nil {
			return a, preflight.AsRefusal(err)
		}
	}
	// The program as it runs, by the descriptor that it inherits.
	program, err := os.Open(self.Path)
	if err != nil {
		return a, err
	}
	defer program.Close()
	cmd := in.sandbox.Command(context.WithoutCancel(ctx), "/proc/self/fd/3", inside.Command)
	cmd.ExtraFiles = []*os.File{program}
	if in.criu != "" {
		cmd.Env = append(cmd.Env, "CUCRIU_CRIU="+in.criu)
	}
	to, err := cmd.StdinPipe()
	if err != nil {
		return a, err
	}
	// The end of its input makes the program give up, at a point where that is safe.
	stop := context.AfterFunc(ctx, func() { to.Close() })
	defer stop()
	from, err := cmd.StdoutPipe()
	if err != nil {
		return a, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return a, fmt.Errorf("enter the job's sandbox: %w", err)
	}
	if !in.sandbox.IsAdopted() {
		defer keepEntered(cmd.Process)()
	}
	root := in.root
	defer in.tellIfSlow(r.Op.What(), r.Expected, func() string { return inSandbox(cmd.Process.Pid, root) })()
	r.PIDs = inside.PIDsBelow(in.sandbox.Init().PID)
	r.Own, r.Sandbox, r.Told = !in.sandbox.IsAdopted(), in.sandbox.Dir, in.toldNow(nil)
	err = json.NewEncoder(to).Encode(r)
	if err == nil {
		err = json.NewDecoder(from).Decode(&a)
	}
	to.Close()
	in.toldNow(a.Told)
	if waitErr := cmd.Wait(); waitErr != nil || err != nil {
		if ctx.Err() != nil { // it was given up
			return inside.Answer{}, context.Cause(ctx)
		}
		return inside.Answer{}, fmt.Errorf("%s in the job's sandbox: %w", r.Op, errors.Join(waitErr, err))
	}
	if a.NotReady {
		return a, &job.NotStartedError{Err: errors.New(a.Error), Status: job.StatusNotReady}
	}
	if a.Error != "" {
		return a, &insideError{a.Error, a.Refused, a.NoRoom && !a.NotBack}
	}
	return a, nil
}

// keepEntered continues nsenter(1) until over is called: it stops itself when its child is stopped, and nobody
// continues it when that is continued, or is killed.
func keepEntered(nsenter *os.Process) (over func()) {
	done := make(chan struct{})
	go func() {
		looks := time.NewTicker(time.Second)
		defer looks.Stop()
		for {
			select {
			case <-done:
				return
			case <-looks.C:
			}
			children, _ := proc.Children(nsenter.Pid)
			if len(children) == 1 && isStopped(nsenter.Pid) && !isStopped(children[0]) {
				_ = nsenter.Signal(unix.SIGCONT)
			}
		}
	}()
	return func() { close(done) }
}

func isStopped(pid int) bool {
	stat, err := proc.ThreadStat(pid, pid)
	return err == nil && stat.State == "T"
}

// insideError is an error of a request in the sandbox.
type insideError struct {
	text    string
	refused bool
	noRoom  bool // see [inside.Answer]
}

func (e *insideError) Error() string { return e.text }

// Refused says whether the job was not touched.
func (e *insideError) Refused() bool { return e.refused }

// pass passes a signal on to the job: to the whole process group what a terminal sends there. The
// end of our terminal is none of the job's business, nor that it stops us. What asks to end is not kept for a resume.
func (in *instance) pass(sig unix.Signal, paused bool) {
	switch {
	case in.root == nil, sig == unix.SIGHUP, in.keeps(sig), paused && sig == unix.SIGCONT:
	case paused && (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTERM): // else the resume would end it
		in.say(fmt.Sprintf("%s is paused, and does not get %s: cucriu jobs stop %[1]s ends it with a checkpoint; or first cucriu jobs resume %[1]s",
			in.name, unix.SignalName(sig)))
	case in.command == nil:
		for _, p := range in.others() {
			_ = p.Signal(sig)
			p.Close()
		}
	case job.IsForGroup(sig) && in.leadsGroup():
		_ = unix.Kill(-in.command.PID, sig) // it may have ended
	case job.IsForGroup(sig), job.IsForFirst(sig):
		_ = in.command.Signal(sig)
	}
}

// leadsGroup reports whether the job's command leads a process group: one that was adopted may be in
// that of somebody else.
func (in *instance) leadsGroup() bool {
	group, err := unix.Getpgid(in.command.PID)
	return err == nil && group == in.command.PID
}

// exitPatience is how long init may take to write down how the job has ended.
const exitPatience = 30 * time.Second

// awaitExit waits until it is known how the job's root process has ended.
func (in *instance) awaitExit() (sandbox.Exit, error) {
	deadline := time.Now().Add(exitPatience)
	for {
		alive := in.sandbox.Alive()
		exit, err := in.sandbox.Exit()
		switch {
		case err != nil:
			return sandbox.Exit{}, err
		case exit != nil:
			return *exit, nil
		case !alive:
			return sandbox.Exit{Status: unix.WaitStatus(unix.SIGKILL), At: time.Now()}, nil
		case time.Now().After(deadline):
			return sandbox.Exit{}, fmt.Errorf("the job has ended, but its init did not report how: %w", proc.ErrGone)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
