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
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/logging"
	"cucriu/internal/proc"
	"cucriu/internal/quote"
	"cucriu/internal/self"
	"cucriu/internal/session"
	"cucriu/internal/version"
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

// The operations, as they are named in errors. The first four are the actions.
const (
	lock, checkpoint, restore, unlock = "lock", "checkpoint", "restore", "unlock"
	toggle, getState, getTID          = "toggle", "get the state", "get the restore thread"
)

// parse reads the command line. The error is [flag.ErrHelp] if that asks for help.
func parse(args []string, getenv func(string) string) (w work, err error) {
	flags := flag.NewFlagSet("cuda-checkpoint", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	one := func(what string) error {
		if w.what != "" && w.what != what {
			return errors.New("only one operation can be requested")
		}
		w.what = what
		return nil
	}
	for option, what := range map[string]string{"get-state": getState, "get-restore-tid": getTID, "toggle": toggle} {
		flags.BoolFunc(option, "", func(string) error { return one(what) })
	}
	flags.Func("action", "", func(text string) error {
		if slices.Contains([]string{lock, checkpoint, restore, unlock}, text) {
			return one(text)
		}
		return errors.New("want lock, checkpoint, restore or unlock")
	})
	var millis uint
	setPairs := func(text string) (err error) {
		w.pairs, err = parsePairs(text)
		return err
	}
	flags.IntVar(&w.pid, "pid", 0, "")
	flags.IntVar(&w.pid, "p", 0, "")
	flags.UintVar(&millis, "timeout", 0, "")
	flags.UintVar(&millis, "t", 0, "")
	flags.Func("device-map", "", setPairs)
	flags.Func("d", "", setPairs)
	addForce := func(text string) error {
		w.force = append(w.force, strings.Split(text, ",")...)
		return preflight.CheckForce(w.force)
	}
	flags.Func("force", "", addForce)
	if err := flags.Parse(args); err != nil {
		return w, err
	}
	if names := getenv("CUDA_CHECKPOINT_FORCE"); names != "" {
		if err := addForce(names); err != nil {
			return w, fmt.Errorf("CUDA_CHECKPOINT_FORCE: %w", err)
		}
	}
	w.timeout = time.Duration(millis) * time.Millisecond
	switch {
	case flags.NArg() > 0:
		return w, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case w.what == "":
		return w, errors.New("name an operation: --get-state, --get-restore-tid, --action or --toggle")
	case w.pid <= 0:
		return w, errors.New("--pid must name a process")
	case w.timeout > 0 && w.what != lock && w.what != toggle:
		return w, errors.New("--timeout is for lock and --toggle")
	case len(w.pairs) > 0 && w.what != restore && w.what != toggle:
		return w, errors.New("--device-map is for restore and --toggle")
	}
	return w, nil
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
	w, err := parse(os.Args[1:], os.Getenv)
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
		fmt.Fprintf(logging.Stderr(), "Could not %s on process ID %d: %v\n", w.what, w.pid, err)
		return 1
	}
	self.LimitMemory()
	signal.Ignore(unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	pid := w.pid // the other may be that of a thread
	w.env = session.Of(&config.Hook{Config: cfg, Force: w.force})
	answer, err := w.do(ctx)
	if err != nil {
		fmt.Fprintf(logging.Stderr(), "Could not %s on process ID %d: %v\n", w.what, pid, quote.Lines(err.Error()))
		return 1
	}
	fmt.Print(answer)
	return 0
}
