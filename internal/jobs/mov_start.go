package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/self"
)

// errUnclear says that it cannot be told whether a job runs or has run.
var errUnclear = errors.New("cannot tell whether the job runs")

const (
	// StartPatience is how long a job may take to be resumed.
	StartPatience = 30 * time.Minute
	startLook     = 100 * time.Millisecond
	// servicePatience is how long the supervisor of a service may take to appear.
	servicePatience = time.Minute
)

// start starts the supervisor of the job, which has arrived by a move, and waits until the job runs. It does nothing if
// the job runs or has run since it arrived. Any error other than [errUnclear] says that it has not run.
func (j *Arriving) start(ctx context.Context, m Move) error {
	if ran, err := HasRunSince(j.dir, m.Events); err != nil || ran {
		return unclear(err)
	}
	if of, err := Describe(j.dir); err != nil || of.Finished {
		return unclear(err)
	}
	if err := failpoint.Hit(ctx, "job.starting", 0); err != nil {
		return err
	}
	ended := make(chan error, 1)
	begun := time.Now()
	deadline := begun.Add(StartPatience)
	if m.Start != "" {
		out, err := exec.CommandContext(ctx, "/bin/sh", "-c", m.Start).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w %s", m.Start, err, strings.TrimSpace(string(out)))
		}
		deadline = time.Now().Add(servicePatience)
	} else {
		flags, err := Flags(j.dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		cmd, err := detached(j.dir, flags)
		if err != nil {
			return err
		}
		go func() { ended <- cmd.Wait() }()
	}
	for {
		if ran, err := HasRunSince(j.dir, m.Events); err != nil || ran {
			return unclear(err)
		}
		local, err := Find(j.hook.Config.RunDir, j.dir)
		if err != nil {
			return unclear(err)
		}
		if local.Runs() {
			return nil
		}
		if local.PID != 0 { // a supervisor is at work
			deadline = time.Now().Add(StartPatience)
		}
		hasFailed := m.Start != "" && local.PID == 0 && local.State == StateFailed
		if f := local.Failure; hasFailed && f != nil && f.At.After(begun) {
			return fmt.Errorf("its supervisor has ended: %s", f.Message)
		}
		select {
		case err := <-ended:
			if ran, lookErr := HasRunSince(j.dir, m.Events); lookErr != nil || ran {
				return unclear(lookErr)
			}
			local, _ := Find(j.hook.Config.RunDir, j.dir)
			if local.PID != 0 { // another one is quicker
				time.Sleep(startLook)
				ended <- err
				continue
			}
			return fmt.Errorf("its supervisor has ended (%w): %s", orEnded(err), lastOf(filepath.Join(j.dir, SupervisorLog)))
		case <-time.After(startLook):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: it was not up after %v, see cucriu jobs list and %s there",
				errUnclear, StartPatience, SupervisorLog)
		}
	}
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

func unclear(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errUnclear, err)
}

// detached starts a supervisor that does not end with this program, nor with ssh.
func detached(dir string, flags []string) (*exec.Cmd, error) {
	log, err := os.OpenFile(filepath.Join(dir, SupervisorLog), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := self.Command(append([]string{"run", "--dir", dir}, flags...)...)
	// The job's output is in its directory.
	cmd.Stderr, cmd.Dir = log, "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the job's supervisor: %w", err)
	}
	return cmd, nil
}

// lastOf returns the last lines of a log.
func lastOf(path string) string {
	const most = 2000
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	data, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.TrimSpace(string(data))
}

// SupervisorLog is where a supervisor writes that was started for a job that has arrived, in the
// job's directory.
const SupervisorLog = "supervisor.log"
