package inside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/criuutil"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/failpoint"
	"cucriu/internal/kit/files"
	"cucriu/internal/kit/first"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/self"
)

var errGivenUp = errors.New("the supervisor of the job has cancelled it")

// Serve serves one request, after those that an earlier supervisor has made. It reads it from its
// standard input, and writes an answer to its standard output. The end of the input means that the
// request is given up, for example because the supervisor was killed.
func Serve(ctx context.Context, hook *hooks.Hook, criu string, in io.Reader, out io.Writer) error {
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil { // this program itself
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	decoder := json.NewDecoder(in)
	var r Request
	if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
		return nil // it was given up before
	} else if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go func() {
		_, _ = decoder.Token() // there is no more input, so this is its end
		giveUp(errGivenUp)
	}()
	said := toldBefore(r.Told)
	if hook = hook.Filled(); r.Op != Restore { // which may say for what it waits
		hook.Log = slog.New(told{hook.Log.Handler(), said, r.PIDs})
	}
	if r.Op == Run { // beside all others, as is a trial
		note, err := r.Program.Run(ctx)
		a := Answer{Notes: []string{note}}
		if err != nil {
			a.Error = err.Error()
		}
		return json.NewEncoder(out).Encode(a)
	}
	if r.Op == Probe {
		trial := checkpoint.Probe(ctx, hook, r.Images, checkpoint.ProbeOptions{
			Command: []string{self.Path, checkpoint.CommandProbe}, Criu: criu, Before: r.Tried,
		})
		return json.NewEncoder(out).Encode(Answer{Trial: &trial, Told: said.new()})
	}
	turn := flock.New(filepath.Join(hook.Config.RunDir, "turn"))
	defer turn.Close()
	_, err := turn.TryLockContext(ctx, 50*time.Millisecond)
	if err != nil {
		return fmt.Errorf("wait for an earlier request: %w", err)
	}
	var a Answer
	if r.Own && (r.Op == Dump || r.Op == Check || r.Op == Pause) {
		err = refuseOutside(r.Root)
	}
	if r.Own && (r.Op == Dump || r.Op == Check) {
		err = errors.Join(err, refuseMounts(r.Mounts))
	}
	err = preflight.AsRefusal(err)
	switch r.Op {
	case Dump:
		if err == nil {
			a, err = dump(ctx, hook, criu, r)
		}
	case Restore:
		a, err = restore(ctx, hook, criu, r)
	case Check:
		var findings preflight.Findings
		outside := err
		findings, err = checkpoint.CheckDump(ctx, hook, r.Root, "", criu)
		err = errors.Join(outside, err, hook.Judge(findings).Err(), files.Foresee(ctx, r.Root, r.Files))
	case Recover:
		err = recoverJob(ctx, hook)
	case Pause:
		if err == nil {
			err = pause(ctx, hook, r.Root)
		}
	case Unpause:
		err = unpause(ctx, hook)
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	a.Told = said.new()
	if err != nil {
		a.Error, a.Refused, a.NotBack = r.PIDs.outside(err.Error()), preflight.Refused(err), errors.Is(err, hooks.ErrNotBack)
		a.NoRoom = errors.Is(err, hooks.ErrNoRoom)
	}
	return json.NewEncoder(out).Encode(a)
}

// recoverJob brings the job back if nobody is left who does. It waits for those who are at work: criu still writes into a
// directory that is about to be removed. A watcher that stays has open what the job is restored from, but a criu whose dump
// and watcher were killed is about to fail, and then the files are all that there is.
func recoverJob(ctx context.Context, hook *hooks.Hook) error {
	const pause = 20 * time.Millisecond // there is no event to wait for
	for end := time.Now().Add(hook.Config.Lock.Timeout); ; time.Sleep(pause) {
		_, err := checkpoint.Recover(ctx, hook)
		isAtWork, isWatched := checkpoint.AtWork(err)
		if isAtWork && ctx.Err() == nil && time.Now().Before(end) {
			continue
		}
		if isWatched {
			return nil
		}
		return err
	}
}

func dump(ctx context.Context, hook *hooks.Hook, criu string, r Request) (a Answer, err error) {
	if err := files.Foresee(ctx, r.Root, r.Files); err != nil {
		return a, preflight.AsRefusal(err)
	}
	of := r.Staged
	terminal, err := sandbox.ReadTerminal(r.Sandbox)
	if err != nil {
		return a, preflight.AsRefusal(err)
	}
	options := checkpoint.Options{
		Path:        criu,
		RPC:         &rpc.CriuOpts{Pid: proto.Int32(int32(r.Root)), LeaveRunning: proto.Bool(!r.End), LogLevel: proto.Int32(2)},
		NoChecksums: true, // the store makes them
		Compare:     true, Base: r.Base, VerifyUnchanged: r.VerifyUnchanged,
		AtStandstill: func(ctx context.Context, dir string) (err error) {
			if !r.WaitAll {
				if err = requireCommand(r.Root); err != nil {
					return err
				}
			}
			truth, err := inventory.Truth(r.Root)
			if err == nil {
				err = files.Save(ctx, truth, dir, r.Files)
			}
			if err == nil {
				a.Clocks, err = sandbox.ReadClocks()
			}
			if err == nil && r.End { // nobody may be left to do it afterwards, and the image counts from now on
				err = files.Sync(ctx, dir)
			}
			if err == nil && !r.Own {
				err = of.identify(r.Root)
			}
			if err == nil {
				of.Clocks = a.Clocks
				err = stagedKind.Write(dir, of)
			}
			return err
		},
	}
	if terminal != nil {
		of.Terminal = terminal.Name
		options.RPC.External = []string{terminal.Name}
	}
	options.NoTerminal = r.NoTerminal
	a.Result, err = checkpoint.Dump(ctx, hook, r.Images, options)
	if err == nil {
		err = failpoint.Hit(ctx, "jobs.dumped", 0)
	}
	return a, err
}

// identify records the processes of a job that runs in no sandbox, and stands still.
func (of *Staged) identify(root int) error {
	tree, err := proc.Tree(root)
	if err != nil {
		return err
	}
	for _, pid := range tree {
		id, err := proc.IdentOf(pid)
		if errors.Is(err, proc.ErrGone) {
			continue // its parent has yet to reap it
		}
		if err != nil {
			return err
		}
		of.Outside = append(of.Outside, id)
	}
	groups, err := proc.ControlGroups(root)
	if err != nil {
		return err
	}
	all, err := proc.All()
	if err != nil {
		return err
	}
	isShared := slices.ContainsFunc(all, func(pid int) bool {
		others, _ := proc.ControlGroups(pid) // it may have ended
		return others == groups && !slices.Contains(tree, pid)
	})
	if !isShared {
		of.OutsideGroups = groups
	}
	return nil
}

// requireCommand fails if the command below a job's first process has ended.
func requireCommand(root int) error {
	status, err := proc.ReadStatus(root)
	if err != nil {
		return err
	}
	pid, isFirst := first.Of(status.Name)
	if !isFirst {
		return nil
	}
	command, err := proc.ReadStatus(pid)
	if err != nil && !errors.Is(err, proc.ErrGone) {
		return err
	}
	if err != nil || command.Ended {
		return errors.New("the job's command has ended, and what it has left would end as soon as it is resumed")
	}
	return nil
}

func restore(ctx context.Context, hook *hooks.Hook, criu string, r Request) (a Answer, err error) {
	// A job that leads no session is restored in ours, which must be one of the sandbox: criu could not
	// dump the job again.
	if _, err := unix.Setsid(); err != nil && !errors.Is(err, unix.EPERM) { // we lead one
		return a, preflight.AsRefusal(fmt.Errorf("session for the job: %w", err))
	}
	outside, err := criuimage.OutsideConnections(r.Images)
	if err != nil {
		return a, err // the image is damaged, and another one may not be
	}
	for _, c := range outside {
		a.Notes = append(a.Notes, fmt.Sprintf("the connection from %v leads out of the job and is restored closed", c))
	}
	of, err := ReadStaged(r.Images)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return a, preflight.AsRefusal(err)
	}
	if shared := files.TreeBytes(r.Images, "/dev/shm"); shared > 0 && !r.Dumped { // else the restore looks
		if err := checkpoint.RequireMemory(ctx, hook, r.Images, uint64(shared)); err != nil {
			return a, preflight.AsRefusal(err)
		}
	}
	if !r.Dumped {
		if a.Changes, err = files.PutBack(ctx, r.Images, files.PutBackOptions{
			Undo:   r.Undo,
			Except: "/" + of.Output, Copies: r.Copies,
		}); err != nil {
			return a, preflight.AsRefusal(err)
		}
	}
	if r.Undo.InSpare() {
		hook.Log.Warn("the job's disk is full: if the host goes down before the job runs, this restore's changes to the job's files are not undone")
	}
	// Whoever was at the other end has gone on, or gone.
	options := checkpoint.Options{Path: criu, RPC: &rpc.CriuOpts{LogLevel: proto.Int32(2)}, Output: os.Stderr, CloseOutside: true}
	output, err := os.OpenFile(r.Output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return a, preflight.AsRefusal(fmt.Errorf("output of the job: %w", err))
	}
	defer output.Close()
	options.Output = output
	if of.Output != "" {
		options.Inherit = append(options.Inherit, checkpoint.Inherited{Name: of.Output, File: output})
		a.Notes = append(a.Notes,
			r.Output+" was renamed or removed while the job wrote to it: the job's output goes there again")
	}
	terminal, err := terminalFor(of, r.Sandbox)
	if err != nil {
		return a, preflight.AsRefusal(err)
	}
	if terminal != nil {
		defer terminal.File.Close()
		options.Inherit = append(options.Inherit, *terminal)
	}
	options.Supervised = true
	var notReady error
	if r.Program != nil {
		options.BeforeResume = func(ctx context.Context) (err error) {
			var note string
			if note, err = r.Program.Run(ctx); note != "" {
				a.Notes = append(a.Notes, note)
			}
			a.NotReady, notReady = err != nil, err
			return err
		}
	}
	a.Result, err = checkpoint.Restore(ctx, hook, r.Images, options)
	if notReady != nil { // which is all that people need to hear
		return a, notReady
	}
	if isOfImage(err) {
		err = preflight.AsFailure(err)
	}
	if err == nil {
		err = failpoint.Hit(ctx, "jobs.restored", 0)
	}
	return a, err
}

// isOfImage reports whether a restore was refused for what the image is, and not for what this
// host lacks: another host would not restore it either.
func isOfImage(err error) bool {
	refused := new(preflight.RefusedError)
	return errors.As(err, new(*criuutil.CriuError)) || errors.As(err, &refused) && refused.Findings.Has(preflight.FindingImage)
}

// terminalFor opens the terminal of the sandbox for a job that had one; nil if it had none.
func terminalFor(of Staged, records string) (*checkpoint.Inherited, error) {
	if of.Terminal == "" {
		return nil, nil
	}
	here, err := sandbox.ReadTerminal(records)
	if err != nil {
		return nil, err
	}
	if here == nil {
		return nil, errors.New("the job had a terminal, but its sandbox has none")
	}
	file, err := os.OpenFile(here.Path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("terminal of the job: %w", err)
	}
	return &checkpoint.Inherited{Name: of.Terminal, File: file}, nil
}
