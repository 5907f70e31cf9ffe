package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/journal"
	"cucriu/hooks/timeline"
)

// trial is one dump and one restore of a job of its own.
type trial struct {
	options
	load load
	mode string
	host *host

	dir    string // for what is not to be measured
	images string
}

// try makes a trial. The image is restored right after it was written, in every
// mode alike, so that as much of it as the machine keeps is still in memory.
func (o options) try(ctx context.Context, l load, mode string) (_ Run, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeLimit(), fmt.Errorf("it took longer than %v", l.timeLimit()))
	defer cancel()
	t := &trial{options: o, load: l, mode: mode}
	// In memory, as the run directory is in use.
	if t.dir, err = os.MkdirTemp("/dev/shm", "cucriu-bench-"); err != nil {
		return Run{}, err
	}
	defer os.RemoveAll(t.dir)
	if t.host, err = o.newHost(ctx, t.dir, l); err != nil {
		return Run{}, err
	}
	defer func() { err = errors.Join(err, t.host.undo()) }()
	if t.images, err = os.MkdirTemp(o.dir, fmt.Sprintf("images-%v-%s-", l, mode)); err != nil {
		return Run{}, err
	}
	if !o.keep {
		defer os.RemoveAll(t.images)
	}
	if err := t.prepare(); err != nil {
		return Run{}, err
	}
	j, err := o.startJob(ctx, t.host, l, filepath.Join(t.dir, "job"))
	if err != nil {
		return Run{}, err
	}
	defer func() { err = errors.Join(err, j.end(context.WithoutCancel(ctx))) }()
	return t.run(ctx, j)
}

// timeLimit is far beyond what a trial takes.
func (l load) timeLimit() time.Duration {
	return 3*time.Minute + time.Duration(l.bytes()/(50*mib))*time.Second
}

// prepare makes what criu and the hook are pointed at.
func (t *trial) prepare() error {
	for _, name := range []string{"etc", "run", "no-plugins", "job"} {
		if err := os.Mkdir(filepath.Join(t.dir, name), 0o700); err != nil {
			return err
		}
	}
	return os.WriteFile(t.path("etc", "config.yaml"), []byte(t.configuration(t.mode)), 0o600)
}

func (t *trial) path(elements ...string) string {
	return filepath.Join(append([]string{t.dir}, elements...)...)
}

func (t *trial) run(ctx context.Context, j *job) (Run, error) {
	var r Run
	// No dump writes while an earlier one's image still goes to the disk.
	unix.Sync()
	start := time.Now()
	cpu, err := t.criu(ctx, "dump", "-t", fmt.Sprint(j.pid))
	r.DumpSeconds, r.DumpCPUSeconds = time.Since(start).Seconds(), cpu
	if err != nil {
		return r, err
	}
	if err := j.waitGone(ctx); err != nil {
		return r, err
	}
	if r.DumpPhases, err = t.phases(ctx, journal.KindDump, journal.OutcomeDumped); err != nil {
		return r, err
	}
	if err := r.measureImage(t.images); err != nil {
		return r, err
	}
	if r.PreDumpSeconds, err = stageSeconds(filepath.Join(t.images, "dump.log"), "pre-dump"); err != nil {
		return r, err
	}

	ticks, err := watchFor("status", j.folders)
	if err != nil {
		return r, err
	}
	defer ticks.Close()
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	running := make(chan error, 1)
	var back time.Time
	start = time.Now()
	go func() {
		var err error
		back, err = ticks.wait(waiting, 1)
		running <- err
	}()
	if r.RestoreCPUSeconds, err = t.criu(ctx, "restore", "-d"); err != nil {
		return r, err
	}
	if err := <-running; err != nil {
		return r, err
	}
	r.RestoreSeconds = back.Sub(start).Seconds()
	r.CPUSeconds = r.DumpCPUSeconds + r.RestoreCPUSeconds
	if r.RestorePhases, err = t.phases(ctx, journal.KindRestore, journal.OutcomeRunning); err != nil {
		return r, err
	}
	return r, j.check(ctx)
}

// criu runs it to its end and returns the processor time of it and of all that it
// waited for: the hook, but not the hook's watcher.
func (t *trial) criu(ctx context.Context, verb string, args ...string) (cpuSeconds float64, err error) {
	log := filepath.Join(t.images, verb+".log")
	args = append([]string{
		verb, "--no-default-config", "-D", t.images, "-o", log, "-v4",
		"--libdir", t.path("no-plugins"), "--action-script", t.actionScript(t.mode),
	}, args...)
	env := []string{"CUCRIU_RUN_DIR=" + t.path("run"), "CUCRIU_CONFIG=" + t.path("etc", "config.yaml")}
	cmd := t.host.command(ctx, env, t.options.criu, args...)
	cmd.WaitDelay = 10 * time.Second // what it started may hold its output open
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("criu %s: %w\n%s%s", verb, errors.Join(err, context.Cause(ctx)), out, logExcerpt(log))
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

// phases waits until the session of a hook is closed, and returns its phases:
// none where another action script is at work.
func (t *trial) phases(ctx context.Context, kind journal.Kind, want journal.Outcome) (timeline.Phases, error) {
	if t.mode == modeSerial {
		return nil, nil
	}
	for {
		sessions, err := journal.List(t.path("run"))
		if err != nil {
			return nil, err
		}
		for _, s := range sessions {
			if s.Kind != kind || s.Outcome == "" {
				continue
			}
			if s.Outcome != want {
				return nil, fmt.Errorf("the %s ended with outcome %s: %s", kind, s.Outcome, s.Message)
			}
			return s.Phases.Steps(), nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the session of the %s is not closed: %w", kind, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond): // the watcher closes it
		}
	}
}

// measureImage notes what the files of an image directory hold, and what they
// take of the disk, but for criu's logs.
func (r *Run) measureImage(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Ext(path) == ".log" {
			return err
		}
		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return err
		}
		r.BytesWritten += stat.Size
		r.BytesAllocated += stat.Blocks * 512
		if byCriu, _ := filepath.Match("pages-*.img", entry.Name()); byCriu {
			r.BytesByCriu += stat.Size
		}
		return nil
	})
}
