// Command cuda-checkpoint has the command line of NVIDIA's program of that name, for scripts and for
// criu's own CUDA plugin. It refuses what the driver would checkpoint and never restore.
//
// The plugin runs it by its name, which switches the plugin on: it is installed beside cucriu-hook
// and not in PATH. The plugin reads its answers from standard output and standard error together, and of
// an error the first 127 bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/self"
	"cucriu/internal/kit/version"
)

// usage has to name --action in its first 2047 bytes: criu's plugin looks for that.
const usage = `cuda-checkpoint (cucriu %s): the command line of NVIDIA's cuda-checkpoint

  --get-state --pid PID         print the state: running, locked, checkpointed or failed
  --get-restore-tid --pid PID   print the thread through which the driver works
  --toggle --pid PID            checkpoint a running process, or restore a checkpointed one
  --action lock | checkpoint | restore | unlock --pid PID [--timeout MS] [--device-map MAP]
                                take one step

  -p, --pid PID          the process
  -t, --timeout MS       how long a lock may wait for work in flight; without it, it waits forever
  -d, --device-map MAP   restore to these GPUs: OLD=NEW,OLD=NEW,... by UUID, with every GPU that the
                         process could see when it was checkpointed
      --force NAME,NAME  override findings. CUDA_CHECKPOINT_FORCE=NAME,NAME does the same, for
                         callers such as criu that cannot add an option
  -h, --help             this text

A lock, checkpoint or toggle that the driver could never undo is refused, as is a restore without
enough free GPU memory. A thread of the process that synchronizes with the GPU while that is
checkpointed dies, as with NVIDIA's program: cucriu suspend stops all threads.
Exit status: 0 done, 1 failed or refused, 2 wrong usage.
`

// parse reads the command line. The error is [flag.ErrHelp] if that asks for help.
func parse(args []string, getenv func(string) string) (o checkpoint.Single, err error) {
	flags := flag.NewFlagSet("cuda-checkpoint", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.Hook = new(hooks.Hook)
	one := func(what checkpoint.Operation) error {
		if o.Operation != "" && o.Operation != what {
			return errors.New("only one operation can be requested")
		}
		o.Operation = what
		return nil
	}
	for option, what := range map[string]checkpoint.Operation{"get-state": checkpoint.SingleState, "get-restore-tid": checkpoint.SingleThread, "toggle": checkpoint.SingleToggle} {
		flags.BoolFunc(option, "", func(string) error { return one(what) })
	}
	flags.Func("action", "", func(text string) error {
		actions := []checkpoint.Operation{checkpoint.SingleLock, checkpoint.SingleCheckpoint, checkpoint.SingleRestore, checkpoint.SingleUnlock}
		if slices.Contains(actions, checkpoint.Operation(text)) {
			return one(checkpoint.Operation(text))
		}
		return errors.New("want lock, checkpoint, restore or unlock")
	})
	var millis uint
	setPairs := func(text string) (err error) {
		o.Pairs, err = parsePairs(text)
		return err
	}
	flags.IntVar(&o.PID, "pid", 0, "")
	flags.IntVar(&o.PID, "p", 0, "")
	flags.UintVar(&millis, "timeout", 0, "")
	flags.UintVar(&millis, "t", 0, "")
	flags.Func("device-map", "", setPairs)
	flags.Func("d", "", setPairs)
	addForce := func(text string) error {
		o.Hook.Force = append(o.Hook.Force, strings.Split(text, ",")...)
		return preflight.CheckForce(o.Hook.Force)
	}
	flags.Func("force", "", addForce)
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if names := getenv("CUDA_CHECKPOINT_FORCE"); names != "" {
		if err := addForce(names); err != nil {
			return o, fmt.Errorf("CUDA_CHECKPOINT_FORCE: %w", err)
		}
	}
	o.Timeout = time.Duration(millis) * time.Millisecond
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case o.Operation == "":
		return o, errors.New("name an operation: --get-state, --get-restore-tid, --action or --toggle")
	case o.PID <= 0:
		return o, errors.New("--pid must name a process")
	case o.Timeout > 0 && o.Operation != checkpoint.SingleLock && o.Operation != checkpoint.SingleToggle:
		return o, errors.New("--timeout is for lock and --toggle")
	case len(o.Pairs) > 0 && o.Operation != checkpoint.SingleRestore && o.Operation != checkpoint.SingleToggle:
		return o, errors.New("--device-map is for restore and --toggle")
	}
	return o, nil
}

// parsePairs reads a map in the form OLD=NEW,OLD=NEW.
func parsePairs(text string) (pairs []cudackpt.GPUPair, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, _ := strings.Cut(part, "=")
		var p cudackpt.GPUPair
		if p.Old, err = cudackpt.ParseUUID(from); err == nil {
			p.New, err = cudackpt.ParseUUID(to)
		}
		if err != nil {
			return nil, fmt.Errorf("want OLD=NEW,OLD=NEW,...: %w", err)
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

func main() {
	status := run()
	logging.Stderr().Flush()
	os.Exit(status)
}

func run() (status int) {
	o, err := parse(os.Args[1:], os.Getenv)
	var cfg config.Config
	if err == nil {
		cfg, err = config.Load(os.Getenv)
	}
	if errors.Is(err, flag.ErrHelp) {
		fmt.Printf(usage, version.Version)
		return 0
	}
	if err != nil {
		fmt.Fprintf(logging.Stderr(), "cuda-checkpoint: %v (see --help)\n", err)
		return 2
	}
	if err := proc.FitLimits(true); err != nil {
		fmt.Fprintf(logging.Stderr(), "Could not %s on process ID %d: %v\n", o.Operation, o.PID, err)
		return 1
	}
	self.LimitMemory()
	signal.Ignore(unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	o.Hook.Config = cfg
	o.Tell = func(text string) { fmt.Fprintln(logging.Stderr(), text) }
	answer, err := o.Do(ctx)
	if err != nil {
		fmt.Fprintf(logging.Stderr(), "Could not %s on process ID %d: %v\n", o.Operation, o.PID, quote.Lines(err.Error()))
		return 1
	}
	if answer != "" {
		fmt.Println(answer)
	}
	return 0
}
