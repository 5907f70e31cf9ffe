package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/criuutil"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/failpoint"
	"cucriu/internal/image"
	"cucriu/internal/jobs/files"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/self"
	"cucriu/internal/watch"
)

// CommandInside is the hidden command that works in a job's sandbox: criu, its hook and the
// watcher see the job's pids and clocks as the job does. It reads a request from its standard
// input and writes an answer to its standard output. The end of the input means that the request
// is given up, for example because the supervisor was killed.
const CommandInside = "job-inside"

// The operations in a sandbox.
const (
	opDump    = "dump"
	opRestore = "restore"
	opRecover = "recover"
	opPause   = "pause"
	opUnpause = "unpause"
	opCheck   = "check"
	opProbe   = "probe"
)

// request is what is to be done in a sandbox.
type request struct {
	Op     string `json:"op"`
	Images string `json:"images,omitempty"`
	Root   int    `json:"root,omitempty"`
	// Sandbox is the folder of the sandbox's records.
	Sandbox string `json:"sandbox,omitempty"`
	// NoTerminal is for a job that was adopted and has no terminal open.
	NoTerminal bool `json:"no_terminal,omitempty"`
	// Output is where a job writes that wrote into a pipe to somebody else when it was adopted.
	Output string `json:"output,omitempty"`
	// Undo is where a restore notes how to undo what it does to the job's files.
	Undo files.UndoFile `json:"undo"`
	// End says that a dump ends the job once its image is complete.
	End bool `json:"end,omitempty"`
	// Files says which files of the job belong to a dump.
	Files files.Options `json:"files"`
	// Tried are the kinds of what was tried before: see [image.Trial].
	Tried string `json:"tried,omitempty"`
	// Staged is what is known of a dump before it is made.
	Staged staged `json:"staged"`
}

// what says what is done, to people.
func (r request) what() string {
	switch r.Op {
	case opDump:
		return "the dump"
	case opRestore:
		return "the restore"
	case opRecover:
		return "what an earlier supervisor had begun"
	case opPause:
		return "the pause"
	case opUnpause:
		return "the end of the pause"
	case opProbe:
		return "the trial restore"
	}
	return "the look at the job"
}

// answer says how it went.
type answer struct {
	Result checkpoint.Result `json:"result"`
	Clocks sandbox.Clocks    `json:"clocks"` // of the job when it was dumped
	// Changes is what was done to the job's files.
	Changes []files.Change `json:"changes,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	Error   string         `json:"error,omitempty"`
	Trial   *image.Trial   `json:"trial,omitempty"`
	// NotBack says that the job must still be brought back, for which its image may be needed.
	NotBack bool `json:"not_back,omitempty"`
	// Refused says that the job was not touched.
	Refused bool `json:"refused,omitempty"`
}

var errGivenUp = errors.New("the supervisor of the job has given it up")

// Inside serves one request, after those that an earlier supervisor has made.
func Inside(ctx context.Context, hook *hooks.Hook, criu string, in io.Reader, out io.Writer) error {
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil { // this program itself
		return fmt.Errorf("close inherited descriptors: %w", err)
	}
	decoder := json.NewDecoder(in)
	var r request
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
	if r.Op == opProbe { // beside all others
		of, err := readStaged(r.Images)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		trial := checkpoint.Probe(ctx, hook, r.Images, checkpoint.ProbeOptions{Command: []string{self.Path, checkpoint.CommandProbe}, Criu: criu, Before: r.Tried, Terminal: of.Terminal})
		return json.NewEncoder(out).Encode(answer{Trial: &trial})
	}
	turn := flock.New(filepath.Join(hook.Config.RunDir, "turn"))
	defer turn.Close()
	_, err := turn.TryLockContext(ctx, 50*time.Millisecond)
	if err != nil {
		return fmt.Errorf("wait for an earlier request: %w", err)
	}
	var a answer
	switch r.Op {
	case opDump:
		a, err = dumpInside(ctx, hook, criu, r)
	case opRestore:
		a, err = restoreInside(ctx, hook, criu, r)
	case opCheck:
		var findings preflight.Findings
		findings, err = checkpoint.CheckDump(ctx, hook, r.Root, "", criu)
		err = errors.Join(err, hook.Judge(findings).Err(), files.Foresee(ctx, r.Root, r.Files))
	case opRecover:
		if _, err = watch.Recover(ctx, hook); errors.As(err, new(*watch.AtWorkError)) {
			err = nil // it brings the job back
		}
	case opPause:
		err = pauseInside(ctx, hook, r.Root)
	case opUnpause:
		err = unpauseInside(ctx, hook)
	default:
		err = fmt.Errorf("request %q is not known", r.Op)
	}
	if err != nil {
		a.Error, a.Refused, a.NotBack = err.Error(), preflight.Refused(err), errors.Is(err, hooks.ErrNotBack)
	}
	return json.NewEncoder(out).Encode(a)
}

func dumpInside(ctx context.Context, hook *hooks.Hook, criu string, r request) (a answer, err error) {
	if err := files.Foresee(ctx, r.Root, r.Files); err != nil {
		return a, preflight.AsRefusal(err)
	}
	of := r.Staged
	terminal, err := sandbox.ReadTerminal(r.Sandbox)
	if err != nil {
		return a, preflight.AsRefusal(err)
	}
	options := checkpoint.Options{
		Path: criu,
		RPC:  &rpc.CriuOpts{Pid: proto.Int32(int32(r.Root)), LeaveRunning: proto.Bool(!r.End), LogLevel: proto.Int32(2)},
		AtStandstill: func(ctx context.Context, dir string) (err error) {
			if err = files.Save(ctx, r.Root, dir, r.Files); err == nil {
				a.Clocks, err = sandbox.ReadClocks()
			}
			if err == nil {
				of.Clocks = a.Clocks
				err = of.write(dir)
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

func restoreInside(ctx context.Context, hook *hooks.Hook, criu string, r request) (a answer, err error) {
	// A job that leads no session comes back in ours, which must be one of the sandbox: criu could not
	// dump the job again.
	if _, err := unix.Setsid(); err != nil && !errors.Is(err, unix.EPERM) { // we lead one
		return a, preflight.AsRefusal(fmt.Errorf("session for the job: %w", err))
	}
	outside, err := criuimage.OutsideConnections(r.Images)
	if err != nil {
		return a, err // the image is damaged, and another one may not be
	}
	for _, c := range outside {
		a.Notes = append(a.Notes, fmt.Sprintf("the connection from %v leads out of the job and comes back closed", c))
	}
	if a.Changes, err = files.PutBack(ctx, r.Images, files.PutBackOptions{Undo: r.Undo}); err != nil {
		return a, preflight.AsRefusal(err)
	}
	if r.Undo.InSpare() {
		hook.Log.Warn("the job's disk is full: what this restore does to the job's files is not undone if the host goes down before the job runs")
	}
	// Whoever was at the other end has gone on, or gone.
	options := checkpoint.Options{Path: criu, RPC: &rpc.CriuOpts{LogLevel: proto.Int32(2)}, Output: os.Stderr, CloseOutside: true}
	if r.Output != "" {
		output, err := os.OpenFile(r.Output, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return a, preflight.AsRefusal(fmt.Errorf("output of the job: %w", err))
		}
		defer output.Close()
		options.Output = output
	}
	terminal, err := terminalFor(r)
	if err != nil {
		return a, preflight.AsRefusal(err)
	}
	if terminal != nil {
		defer terminal.File.Close()
		options.Inherit = []checkpoint.Inherited{*terminal}
	}
	a.Result, err = checkpoint.Restore(ctx, hook, r.Images, options)
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
func terminalFor(r request) (*checkpoint.Inherited, error) {
	of, err := readStaged(r.Images)
	if errors.Is(err, os.ErrNotExist) || err == nil && of.Terminal == "" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	here, err := sandbox.ReadTerminal(r.Sandbox)
	if err != nil {
		return nil, err
	}
	if here == nil {
		return nil, errors.New("the job had a terminal, and its sandbox has none")
	}
	file, err := os.OpenFile(here.Path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("terminal of the job: %w", err)
	}
	return &checkpoint.Inherited{Name: of.Terminal, File: file}, nil
}
