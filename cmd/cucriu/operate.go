package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs"
)

func stateCommand() *cobra.Command {
	var uuids bool
	var pids []int
	cmd := &cobra.Command{
		Use:   "state -p PID",
		Short: "Show the CUDA state of processes: running, locked, checkpointed or failed",
		Long: `
If a process is stopped, the thread through which the driver works runs briefly to
answer, unless a dump or restore is working on the process.
GPUs are shown by their index in cucriu gpus.`,
		Example: "  cucriu state -p 4711\n  cucriu state -p 4711 -p 4712 --json",
		Args:    noArguments,
		RunE: withHook(func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			processes, err := checkpoint.States(cmd.Context(), hook, pids)
			if err != nil {
				return err
			}
			return show(cmd, processes, func(out io.Writer) { writeProcesses(out, indexOfHost(hook), processes, uuids) })
		}),
	}
	pidsFlag(cmd, &pids)
	jsonFlag(cmd)
	uuidFlag(cmd, &uuids)
	return cmd
}

func writeProcesses(out io.Writer, index gpuIndex, processes []checkpoint.CUDAProcess, uuids bool) {
	table := newTable("PID", "NAME", "STATE", "GPU MEMORY", "SEES", "NOTE")
	for _, p := range processes {
		table.row(strconv.Itoa(p.PID), p.Name, p.State, index.memory(p.MemoryBytes),
			index.names(cudackpt.UUIDsOf(p.GPUs)), p.Note)
		if uuids && len(p.MemoryBytes) > 0 {
			table.below(index.details(p.MemoryBytes))
		}
	}
	table.write(out)
}

// withProcesses is [withHook] for a command that works on processes. It refuses those that only the
// supervisor of their long job can work on: the job is paused, they are the supervisor itself, or they are to be
// suspended, which would be in the way of the job's checkpoints.
func withProcesses(pids *[]int, run func(*cobra.Command, *hooks.Hook, []string) error) func(*cobra.Command, []string) error {
	return withHook(func(cmd *cobra.Command, hook *hooks.Hook, args []string) error {
		for _, pid := range *pids {
			l, meaning, err := jobs.Involving(hook.Config.RunDir, pid, false)
			switch {
			case err != nil || l == nil:
			case l.State == jobs.StatePaused:
				return preflight.AsRefusal(fmt.Errorf("process %d %s: cucriu jobs resume %s", pid, meaning, l.Name))
			case cmd.Name() == "suspend" && l.PID == 0:
				return preflight.AsRefusal(fmt.Errorf("process %d %s, which has no supervisor: cucriu run --dir %s, and then cucriu jobs pause %s", pid, meaning, l.Dir, l.Name))
			case l.PID == pid || cmd.Name() == "suspend":
				return preflight.AsRefusal(fmt.Errorf("process %d %s: cucriu jobs pause %s frees its GPUs; cucriu status lists its CUDA processes", pid, meaning, l.Name))
			}
		}
		return run(cmd, hook, args)
	})
}

// changed is what lock and unlock report with --json.
type changed struct {
	PIDs  []int  `json:"pids"`
	State string `json:"state"`
}

func lockCommand() *cobra.Command {
	var pids []int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "lock -p PID",
		Short: "Keep processes from submitting work to their GPUs",
		Long: `
When this command returns, all GPU work has finished, and calls that submit more
block until cucriu unlock. Several processes are locked all or none, which is the
only way to lock ranks that wait for each other.`,
		Example: "  cucriu lock -p 4711\n  cucriu lock -p 4711 -p 4712 --timeout 1m",
		Args:    noArguments,
		RunE: withProcesses(&pids, func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			if cmd.Flags().Changed("timeout") {
				hook.Config.Lock.Timeout = timeout
				hook.Config.Lock.Try = min(hook.Config.Lock.Try, timeout)
				if err := hook.Config.Validate(); err != nil {
					return usageError{fmt.Errorf("--timeout: %w", err)}
				}
			}
			err := atSignal(cmd, say, "cancelling; waiting for the driver to answer", func() error {
				return checkpoint.Lock(cmd.Context(), hook, pids)
			})
			if err != nil {
				return err
			}
			return warned(show(cmd, changed{pids, cudackpt.StateLocked.String()}, func(out io.Writer) {
				for _, pid := range pids {
					fmt.Fprintf(out, "process %d is locked; cucriu unlock -p %d lets it submit work again\n", pid, pid)
				}
			}))
		}),
	}
	pidsFlag(cmd, &pids)
	jsonFlag(cmd)
	timeoutFlag(cmd, &timeout, "timeout", "how long work in flight may take; lock.timeout of the configuration if not given")
	return cmd
}

func unlockCommand() *cobra.Command {
	var pids []int
	cmd := &cobra.Command{
		Use:     "unlock -p PID",
		Short:   "Let processes that were locked submit work again",
		Example: "  cucriu unlock -p 4711",
		Args:    noArguments,
		RunE: withProcesses(&pids, func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			var locked []int
			err := atSignal(cmd, say, "an unlock that has begun is not interrupted", func() (err error) {
				locked, err = checkpoint.Unlock(cmd.Context(), hook, pids)
				return err
			})
			if err != nil {
				return err
			}
			return warned(show(cmd, changed{pids, cudackpt.StateRunning.String()}, func(out io.Writer) {
				for _, pid := range pids {
					what := "was not locked"
					if slices.Contains(locked, pid) {
						what = "is unlocked"
					}
					fmt.Fprintf(out, "process %d %s\n", pid, what)
				}
			}))
		}),
	}
	pidsFlag(cmd, &pids)
	jsonFlag(cmd)
	return cmd
}

func suspendCommand() *cobra.Command {
	var processes []int
	cmd := &cobra.Command{
		Use:   "suspend -p PID",
		Short: "Free the GPUs of processes: move their GPU memory into host memory and stop them",
		Long: `
They stay stopped until cucriu resume, even if they are sent SIGCONT. (A process that
cannot be held that way, as a warning says, must not be continued: a thread that
synchronizes with the GPU while its process is checkpointed dies.) The state needed
to resume them is in the run directory. If this command fails or is killed, they keep
running.`,
		Example: "  cucriu suspend -p 4711\n  cucriu resume -p 4711",
		Args:    noArguments,
		RunE: withProcesses(&processes, func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			var s checkpoint.Status
			if err := atSignal(cmd, say, "cancelling; waiting for the driver to answer", func() (err error) {
				s, err = checkpoint.Suspend(cmd.Context(), hook, processes)
				return err
			}); err != nil {
				return err
			}
			return warned(show(cmd, s, func(out io.Writer) {
				for _, pid := range s.PIDs() {
					fmt.Fprintf(out, "process %d is checkpointed and stopped; cucriu resume -p %d resumes it\n", pid, pid)
				}
			}))
		}),
	}
	pidsFlag(cmd, &processes)
	jsonFlag(cmd)
	return cmd
}

func resumeCommand() *cobra.Command {
	var force bool
	var processes []int
	var pairs []config.Rule
	cmd := &cobra.Command{
		Use:   "resume -p PID",
		Short: "Resume processes that were suspended, from whatever state they are in",
		Long: `
Processes that were suspended together are resumed together. They are restored to the
GPUs that the configuration or, instead of it, --map maps theirs to; without either,
to their own. If a GPU lacks the memory, nothing is changed.`,
		Example: "  cucriu resume -p 4711\n  cucriu resume -p 4711 --map 0=1",
		Args:    noArguments,
		RunE: withProcesses(&processes, func(cmd *cobra.Command, hook *hooks.Hook, _ []string) error {
			useMap(hook, pairs)
			var resumed []checkpoint.Status
			err := atSignal(cmd, say, "a resume that has begun is not interrupted: it continues until the processes run or it fails", func() (err error) {
				resumed, err = checkpoint.Resume(cmd.Context(), hook, processes, force)
				return err
			})
			if len(resumed) == 0 && err == nil && len(pairs) > 0 {
				return preflight.AsRefusal(fmt.Errorf("nothing to resume: already running, so --map has no effect: cucriu suspend -p %s first", somePIDs(processes)))
			}
			return errors.Join(err, warned(show(cmd, resumed, func(out io.Writer) {
				for _, s := range resumed {
					fmt.Fprintf(out, "%s: %s\n", somePIDs(s.PIDs()), s.Message)
				}
				if len(resumed) == 0 && err == nil {
					fmt.Fprintln(out, "nothing to resume: already running")
				}
			})))
		}),
	}
	pidsFlag(cmd, &processes)
	mapFlag(cmd, &pairs)
	cmd.Flags().BoolVar(&force, "force", false, "also restore processes checkpointed by another tool, without knowing whether the GPU memory suffices")
	jsonFlag(cmd)
	return cmd
}
