package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"cucriu/hooks"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/proc"
	"cucriu/internal/self"
)

// supervisor takes care of one job.
type supervisor struct {
	Options
	hook    *hooks.Hook
	record  record
	store   *store.Store
	runDir  string // of this job on this host; gone after a reboot
	sandbox *sandbox.Sandbox
	root    *proc.Process // the job's root process
	fence   sandbox.Fence
	user    *account // nil if the job is root's

	console *console // joins our terminal to the job's; nil if it does not

	paused  atomic.Bool // the job stands still
	board   board
	control control
	metrics *metrics

	costs  costs
	runsOn bool        // the job, without us
	ending atomic.Bool // a checkpoint is under way that ends the job
	// moving answers whoever moves the job, once nothing of it is left here.
	moving func(error)
	// tidy is the context of what a preemption does not wait for, and hurry ends it.
	tidy     context.Context
	hurry    context.CancelFunc
	trial    trial
	failures int       // attempts at a checkpoint since the last one
	told     time.Time // when a preemption came before the job was here; zero if none did
}

// Run runs a job until it ends, is preempted, or is taken away by another host, and returns the
// exit status to end with. ctx ends what is under way, and leaves the job as it is.
func Run(ctx context.Context, hook *hooks.Hook, o Options, signals *job.Signals) (status int, err error) {
	hook = hook.Filled()
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return 0, err
	}
	s := &supervisor{Options: o, hook: hook}
	known, release, err := s.claim(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	// Whatever refuses this command does so before it makes itself the owner of the directory: one
	// that is a copy may be where somebody looks who has the job.
	if left, err := s.mayRunHere(); err != nil || left {
		return o.MovedStatus, err
	}
	if s.record.Finished != nil {
		return s.sayFinished(), nil
	}
	if s.User != "" {
		if s.user, err = lookupAccount(s.User); err != nil {
			return 0, err
		}
	}
	if err := s.checkHere(ctx); err != nil {
		return 0, err
	}
	defer s.endControl()
	if s.store, err = store.Open(s.Dir, store.OpenOptions{Takeover: o.Takeover, Codec: o.Compress, Log: hook.Log}); err != nil {
		return 0, err
	}
	defer func() {
		if s.letGo(); s.runsOn {
			err = errors.Join(err, s.store.Abandon())
			return
		}
		err = errors.Join(err, s.store.Close())
	}()
	if left, err := s.mayRunHere(); err != nil || left {
		return o.MovedStatus, err
	}
	if s.record, err = openRecord(s.Options); err != nil {
		return 0, err
	}
	if s.record.Finished != nil {
		return s.sayFinished(), nil
	}
	if err := s.openRunDir(known); err != nil {
		return 0, err
	}
	defer func() { s.noteEnd(err) }()
	if s.metrics, err = newMetrics(o.Metrics, s.record.Name, s.board.now.Checkpoint); err != nil {
		return 0, err
	}
	defer s.metrics.end()
	tail, err := followOutput(s.outputPath(), s.Output)
	if err != nil {
		return 0, err
	}
	defer tail.stop()
	s.noteFlags()
	for {
		if here, status, err := s.awaitMove(ctx, signals); err != nil || !here {
			return status, err
		}
		if status, err := s.care(ctx, signals); s.moving == nil {
			return status, err
		} else if s.moving(err); err != nil {
			return status, err
		}
		s.moving = nil
	}
}

// care brings the job to run, and takes care of it until it ends or leaves.
func (s *supervisor) care(ctx context.Context, signals *job.Signals) (status int, err error) {
	told, err := s.beginListening(ctx, signals)
	if err != nil {
		return 0, err
	}
	if told != nil {
		return s.leaveAtOnce(told)
	}
	if s.record.Finished != nil { // while nobody looked
		return s.sayFinished(), nil
	}
	if err := s.connectTerminal(); err != nil {
		s.say(err.Error())
	}
	defer s.console.leave()
	s.tidy, s.hurry = context.WithCancel(ctx)
	defer s.trial.await()
	defer s.hurry()
	return s.watch(ctx, signals)
}

func (s *supervisor) sayFinished() (status int) {
	end := s.record.Finished
	s.say(fmt.Sprintf("%s has finished on %s, with exit status %d; to run it again, name another --dir, or remove this one", s.record.Name, end.At.Local().Format(time.DateTime), end.Status))
	return end.Status
}

// Key is what tells the job of a directory from others on this host.
func Key(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:8])
}

func (s *supervisor) outputPath() string { return filepath.Join(s.Dir, "output.log") }

// ask has a request served in the sandbox.
func (s *supervisor) ask(ctx context.Context, r request) (answer, error) {
	return s.askIn(ctx, s.sandbox, s.root, r)
}

func (s *supervisor) askIn(ctx context.Context, p *sandbox.Sandbox, root *proc.Process, r request) (answer, error) {
	// The program as it runs, by the descriptor that it inherits.
	program, err := os.Open(self.Path)
	if err != nil {
		return answer{}, err
	}
	defer program.Close()
	cmd := p.Command(context.WithoutCancel(ctx), "/proc/self/fd/3", CommandInside)
	cmd.ExtraFiles = []*os.File{program}
	if s.Criu != "" {
		cmd.Env = append(cmd.Env, "CUCRIU_CRIU="+s.Criu)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return answer{}, err
	}
	// The end of its input makes the program give up, at a point where that is safe.
	stop := context.AfterFunc(ctx, func() { in.Close() })
	defer stop()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return answer{}, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return answer{}, fmt.Errorf("enter the job's sandbox: %w", err)
	}
	defer s.tellIfSlow(r.what(), s.expects(r), func() string { return s.inSandbox(cmd.Process.Pid, root) })()
	var a answer
	err = json.NewEncoder(in).Encode(r)
	if err == nil {
		err = json.NewDecoder(out).Decode(&a)
	}
	in.Close()
	if waitErr := cmd.Wait(); waitErr != nil || err != nil {
		return answer{}, fmt.Errorf("%s in the job's sandbox: %w", r.Op, errors.Join(waitErr, err))
	}
	if a.Error != "" {
		return a, &insideError{a.Error, a.Refused}
	}
	return a, nil
}

// insideError is an error of a request in the sandbox.
type insideError struct {
	text    string
	refused bool
}

func (e *insideError) Error() string { return e.text }

// Refused says whether the job was not touched.
func (e *insideError) Refused() bool { return e.refused }
