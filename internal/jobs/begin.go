package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/guest"
	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// firstPID is where the pids of a job begin. Those below are for the sandbox's own programs.
const firstPID = 1000

// starter brings the job to run: it runs already, is resumed, is started, or is adopted.
type starter struct {
	*lease
	fence  sandbox.Fence
	paused bool // the job already runs, and is paused
	steps  steps
	// started is a program to be run now that the job does; nil for none.
	started *job.Program
}

// begin brings the job to run, or finds that it has finished. told is cancelled, at the latest with ctx,
// when no job is to be started or resumed any more.
func (s *starter) begin(ctx, told context.Context) error {
	s.paused = false
	attached, err := s.attach(ctx)
	if err == nil && !attached && s.record.Finished == nil {
		s.fence, err = s.raiseFence(told)
	}
	if err != nil {
		return err
	}
	s.removeLeftovers(s.store.RemovePartials, nil) // what is staged may need the room
	s.sayError(os.RemoveAll(filepath.Join(s.Dir, packedDir)))
	saved, err := s.saveStaged(told)
	if err == nil {
		s.removeLeftovers(s.store.RemoveLeftovers, saved)
		s.staged = ""
	} else if !attached {
		return err
	} else {
		s.tell(Event{Event: EventFailed, Message: err.Error()})
	}
	if attached {
		return nil
	}
	if s.record.Finished != nil {
		return removeSandboxes(s.Dir)
	}
	if err := s.undoFiles(); err != nil {
		return err
	}
	all, err := s.store.Checkpoints()
	if err != nil {
		return err
	}
	if told.Err() != nil {
		return context.Cause(told)
	}
	if len(all) == 0 {
		if err := checkMade(s.Dir); err != nil {
			return err
		}
		if s.record.Adopted {
			return s.adopt(ctx)
		}
		if s.record.Image != nil {
			return s.startFromImage(told)
		}
		if len(s.OnStart) > 0 {
			ctx = told // else it takes no time
		}
		return s.start(ctx)
	}
	return s.resumeNewest(told, all)
}

// removeLeftovers removes what a supervisor that was killed has left. A failure here must not stop the job.
// saved are the staging directories whose images became checkpoints.
func (s *starter) removeLeftovers(remove func() ([]string, error), saved []string) {
	left, err := remove()
	if err != nil {
		s.say(fmt.Sprintf("not all leftovers of an earlier supervisor could be removed: %v", err))
	}
	for _, path := range left {
		if !slices.Contains(saved, path) {
			s.say("removed " + path + ", which never became a checkpoint")
		}
	}
}

// attach takes on a job that runs although its supervisor was killed.
func (s *starter) attach(ctx context.Context) (bool, error) {
	p, exit, err := findSandbox(s.Options)
	if errors.Is(err, sandbox.ErrGone) {
		s.runsOn = false
		if exit != nil && exit.Code() == 0 && s.Restart != RestartAlways {
			return false, s.finish(exit.Code(), exit.At)
		}
		if exit != nil {
			s.tellEnded(*exit, " while nobody supervised it")
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.sandbox = p
	s.noteSandbox()
	if p.Running {
		s.forgetUndo()
	}
	if err := p.Keep(ctx); err != nil {
		return false, err
	}
	if of := s.store.Previous(); of.BootID != "" && !of.IsOfThisBoot() {
		s.say(fmt.Sprintf("%s was taken over by %v: the older copy running here is being ended", s.record.Name, of))
		return false, s.endSandbox()
	}
	// What the last supervisor had begun is finished, or undone, first.
	over := s.killPatiently(ctx)
	_, err = s.ask(ctx, inside.Request{Op: inside.Recover})
	over()
	if err != nil && p.Alive() {
		return false, fmt.Errorf("the job is running, but a dump or restore that the previous supervisor left unfinished could not be completed; try again: %w", err)
	}
	if err = s.openRoot(); err == nil && s.isExiting() && p.Running { // the command has ended: so does the job
		s.endOthers(ctx)
	}
	if err == nil && s.isExiting() {
		err = proc.ErrGone
	}
	switch {
	case err == nil && !p.Running: // it was being restored
		return false, s.endSandbox()
	case err == nil:
		s.setRunning()
		s.setLeaving(false) // whoever told it is gone
		s.sayError(s.updateAbout())
		if err := s.attachPaused(ctx); err != nil {
			return false, err
		}
		s.tell(Event{Event: EventAttached, Message: fmt.Sprintf("%s was running without a supervisor: it is supervised again", s.record.Name)})
		return true, nil
	case !errors.Is(err, proc.ErrGone):
		return false, err
	}
	exit, err = p.Exit()
	for since := time.Now(); err == nil && exit == nil && p.Running && p.Alive() && time.Since(since) < exitPatience; exit, err = p.Exit() {
		time.Sleep(10 * time.Millisecond) // init writes it down
	}
	switch {
	case err != nil:
		return false, err
	case exit == nil || !p.Running: // it was being started or restored
		return false, s.endSandbox()
	case p.Leaving && exit.Code() == 0: // at its scheduler's signal
		return false, s.endSandbox()
	case p.Leaving && exit.Status.Signaled() && exit.Status.Signal() == unix.SIGKILL: // by its last dump
		return false, s.endSandbox()
	case exit.Code() != 0 && !exit.Unknown: // it is resumed, which is what this command is for
		s.tellEnded(*exit, " while nobody supervised it")
		return false, s.endSandbox()
	}
	return true, nil // how it has ended is told later
}

// attachPaused finds out whether a job that runs without a supervisor is paused. A pause that was
// cut off is made whole, or undone.
func (s *starter) attachPaused(ctx context.Context) (err error) {
	if s.paused, err = inside.IsPaused(s.sandbox.RunDir); err != nil || !s.paused {
		return err
	}
	if _, err := s.ask(ctx, inside.Request{Op: inside.Pause, Root: s.sandbox.Root}); err != nil {
		s.say(fmt.Sprintf("the pause of %s was interrupted and is being undone: %v", s.record.Name, err))
		if err := s.unpause(ctx); err != nil {
			s.tell(Event{Event: EventFailed, Message: err.Error()})
			return nil
		}
		s.paused = false
		return nil
	}
	s.inform(s.record.Name + " is paused: resume it with cucriu jobs resume")
	return nil
}

// start starts the job's command in a new sandbox.
func (s *starter) start(ctx context.Context) error {
	g, err := job.GivenGPUs(s.hook, environment(s.Options), s.record.Adopted)
	if err != nil {
		return err
	}
	given, why := g.Renumber(environment(s.Options)), ""
	env := given
	if s.Guest && len(g.Visible) > 0 {
		env, why, err = s.withGuest(env)
		if err != nil {
			return err
		}
	}
	choice := job.Choice{With: s.Settings, Without: s.NoSettings, Sharing: why != ""}
	env, notes := choice.Apply(env, len(g.Visible))
	s.saySet(given, env, append([]string{why}, notes...))
	if s.record.Input == inputFile {
		return errors.New("the job reads a file that was the standard input of an earlier version of cucriu run (--stdin), which this version does not support: start it anew in another --dir")
	}
	start := &sandbox.Start{Args: s.record.Command, Env: env, Dir: s.record.WorkDir, Output: s.outputPath(), FileSize: s.fileSize}
	if err := first.Unfit(s.Dir); err != nil {
		s.say(fmt.Sprintf("the job has no first process of cucriu's: %v; a process whose parent ends cannot be part of its checkpoints, which are refused then", err))
	} else if err := first.Place(s.Dir); err != nil {
		return fmt.Errorf("first process of the job: %w", err)
	} else {
		start.First = filepath.Join(s.Dir, first.File)
	}
	if s.user != nil {
		start.Env, start.User = s.user.Environment(env), &s.user.Credential
	}
	start.Before = s.program("--on-start", s.OnStart, start.User)
	err = s.newSandbox(ctx, g, sandbox.Spec{FirstPID: firstPID, Start: start})
	if errors.As(err, new(*job.NotStartedError)) {
		return errors.Join(err, s.withdraw())
	}
	if err != nil {
		return err
	}
	s.tell(Event{Event: EventStarted, Message: fmt.Sprintf("%s: %s", s.record.Name, strings.Join(s.record.Command, " "))})
	s.started = s.program("--on-started", s.OnStarted, start.User)
	return s.openRoot()
}

// saySet says in one line what is set in the job's environment beside what was given, and why only to those who ask.
func (s *starter) saySet(given, env, why []string) {
	set := slices.DeleteFunc(slices.Clone(env), func(v string) bool { return slices.Contains(given, v) })
	if len(set) > 0 {
		s.inform(fmt.Sprintf("set in the job's environment: %s (-v says why, and how to leave it out)", strings.Join(set, " ")))
	}
	for _, text := range why {
		if text != "" && s.Verbose {
			s.inform(text)
		}
	}
}

// withGuest has the job's programs load the library, and says why. A job that cannot have it runs without.
func (s *starter) withGuest(env []string) (_ []string, why string, err error) {
	var version string
	driver, err := s.hook.OpenDriver()
	if err == nil {
		version, err = driver.DriverVersion()
	}
	if err == nil {
		err = guest.Unfit(s.Dir, version, s.isOtherUsers())
	}
	if err != nil {
		s.say(fmt.Sprintf("--guest is left out: %v", err))
		return env, "", nil
	}
	if err := guest.Place(s.Dir); err != nil {
		return nil, "", fmt.Errorf("library for the job: %w", err)
	}
	why = fmt.Sprintf("LD_PRELOAD=%s is set (its library makes large allocations of parts: a process that uses several GPUs "+
		"can be restored, and checkpoints are quicker; --guest off leaves it out)", filepath.Join(s.Dir, guest.File))
	return guest.Preload(env, s.Dir), why, nil
}

// newSandbox makes a sandbox that shows these GPUs.
func (s *starter) newSandbox(ctx context.Context, g job.GPUs, spec sandbox.Spec) error {
	if s.Stage == "" || s.Stage == StageMemory {
		spec.Memory = memoryStage(s.runDir)
		if err := os.MkdirAll(spec.Memory, 0o700); err != nil {
			return err
		}
	}
	spec.Hide, spec.Params, spec.Terminal = g.Hidden, filepath.Join(s.hook.Config.Driver.Root, "proc/driver/nvidia/params"), terminalSpec(s.core)
	spec.HostDir, spec.Fence, spec.PrivateTmp = s.runDir, s.fence, s.PrivateTmp
	if from := s.record.Image; from != nil {
		shown, err := from.shown(s.Dir)
		if err != nil {
			return err
		}
		spec.OwnTerminals, spec.Shown = true, append(spec.Shown, shown...)
		switch s.Net {
		case NetHost:
		case NetOwn:
			spec.OwnNetwork, spec.Addresses = true, from.Addresses
		default:
			spec.Network = netns.Path(s.Net)
		}
	}
	s.showAbout(g, &spec)
	err := s.makeSandbox(func(dir, runDir string) (err error) {
		s.sandbox, err = sandbox.New(ctx, dir, runDir, spec)
		return err
	})
	if err == nil && s.sandbox.Note != "" {
		s.say(s.sandbox.Note)
	}
	return err
}

// makeSandbox has a sandbox made that keeps its records in dir, and removes what is left of earlier ones.
func (s *starter) makeSandbox(how func(dir, runDir string) error) error {
	if err := s.store.Fenced(); err != nil {
		return err
	}
	if err := removeSandboxes(s.Dir); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.Dir, sandboxPrefix)
	if err != nil {
		return err
	}
	runDir := filepath.Join(s.runDir, rundir.Inner)
	if err := os.RemoveAll(runDir); err != nil {
		return err
	}
	if err := os.Mkdir(runDir, 0o700); err != nil {
		return err
	}
	var from int64
	if output, err := os.Stat(s.outputPath()); err == nil {
		from = output.Size()
	} else if !errors.Is(err, fs.ErrNotExist) { // else it was rotated away, and is made anew
		return preflight.AsRefusal(err)
	}
	if err := how(dir, runDir); err != nil {
		return err
	}
	s.status.note(func(l *Local) { l.OutputFrom = from })
	s.noteSandbox()
	return nil
}

// noteSandbox notes where the job runs, for the time when there is no supervisor.
func (s *starter) noteSandbox() {
	init := s.sandbox.Init()
	s.status.note(func(l *Local) {
		if l.Init = &init; s.record.Image != nil {
			l.Image = s.record.Image.Path
		}
	})
}

// setRunning records that the job runs. If that fails it is tried again at each tick: until then, the end
// of the supervisor costs the job what it has done since its newest checkpoint.
func (s *starter) setRunning() {
	if err := s.sandbox.SetRunning(); err != nil {
		s.say(fmt.Sprintf("the sandbox's record could not be written: %v", err))
	}
	s.forgetUndo()
}

// environment is that of this run.
func environment(o Options) []string {
	if o.Env != nil {
		return slices.Clone(o.Env)
	}
	return os.Environ()
}
