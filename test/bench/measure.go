package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/timeline"
	"cucriu/internal/core/journal"
)

// trial is one dump and one restore of a job of its own.
type trial struct {
	options
	load load
	mode string
	host *host

	dir    string // for files that are not measured
	images string
}

// try runs one trial. In every mode it restores the image right after writing it, so that
// as much of the image as the machine caches is still in memory.
func (o options) try(ctx context.Context, l load, mode string) (_ Run, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.timeLimit(), fmt.Errorf("it took longer than %v", l.timeLimit()))
	defer cancel()
	t := &trial{options: o, load: l, mode: mode}
	// In memory, like the run directory in use.
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
	j, err := o.startJob(ctx, t.host, l, mode, filepath.Join(t.dir, "job"))
	if err != nil {
		return Run{}, err
	}
	defer func() { err = errors.Join(err, j.end(context.WithoutCancel(ctx))) }()
	return t.run(ctx, j)
}

// timeLimit is far more than a trial takes.
func (l load) timeLimit() time.Duration {
	return 3*time.Minute + time.Duration(l.bytes()/(50*mib))*time.Second
}

// prepare makes the files and folders that criu and the hook use.
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
	// Wait until the disk has the images of earlier trials, which would slow a dump down.
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

// criu runs criu to its end. It returns the processor time of criu and of all processes
// that it waited for: this includes the hook, but not its watcher.
func (t *trial) criu(ctx context.Context, verb string, args ...string) (cpuSeconds float64, err error) {
	log := filepath.Join(t.images, verb+".log")
	args = append([]string{
		verb, "--no-default-config", "-D", t.images, "-o", log, "-v4",
		"--libdir", t.path("no-plugins"), "--action-script", t.actionScript(t.mode),
	}, args...)
	env := []string{"CUCRIU_RUN_DIR=" + t.path("run"), "CUCRIU_CONFIG=" + t.path("etc", "config.yaml")}
	cmd := t.host.command(ctx, env, t.options.criu, args...)
	cmd.WaitDelay = 10 * time.Second // its children may keep its output open
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("criu %s: %w\n%s%s", verb, errors.Join(err, context.Cause(ctx)), out, logExcerpt(log))
	}
	return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

// phases waits until the session of a hook is closed, and returns its phases. With another
// action script there are none.
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
		case <-time.After(5 * time.Millisecond): // the watcher closes the session
		}
	}
}

// measureImage records the sizes of the files in an image directory, and the disk space
// that they take, except those of criu's logs.
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
