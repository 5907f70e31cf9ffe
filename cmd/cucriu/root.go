package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/self"
	"cucriu/internal/kit/version"
)

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cucriu",
		Short: "Dump, restore and migrate processes that use NVIDIA GPUs, with stock CRIU",
		Long: `cucriu lets stock CRIU dump and restore processes that use NVIDIA GPUs.

cucriu dump and cucriu restore run criu themselves. Where something else runs it (by
hand, runc, Podman, Kubernetes), cucriu-hook serves as criu's action script. The
other commands show what became of jobs, recover those whose dump was interrupted,
and show how the GPUs of an image map to this host's.

The exit status says what became of the job: cucriu help exit-status. The
configuration is /etc/cucriu/config.yaml, or the file that CUCRIU_CONFIG names; an
invalid one is wrong usage.`,
		Example:       "  cucriu check -t 4711\n  cucriu dump -t 4711 -D /var/lib/images/job1\n  cucriu restore -D /var/lib/images/job1",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(asRoot(restoreCommand(), stateCommand(), statusCommand())...)
	root.AddCommand(asRoot(holdJob(dumpCommand(), recoverCommand(), lockCommand(), suspendCommand(), resumeCommand(), unlockCommand(),
		migrateCommand(), receiveCommand())...)...)
	root.AddCommand(hiddenCommands()...)
	root.AddCommand(manCommands()...)
	root.AddCommand(runCommand(), jobsCommand(), checkCommand(), mapCommand(), gpusCommand(), inspectCommand(), verifyCommand(), versionCommand(), exitStatusTopic())
	root.PersistentFlags().BoolP("quiet", "q", false, "print nothing but warnings and errors, and what was asked for with --json")
	completeHelp(root)
	return root
}

// completeHelp puts the short text of a command before its help, if that begins with an empty line.
func completeHelp(cmd *cobra.Command) {
	if strings.HasPrefix(cmd.Long, "\n") {
		cmd.Long = cmd.Short + ".\n" + cmd.Long
	}
	for _, command := range cmd.Commands() {
		completeHelp(command)
	}
}

// holdJob has Ctrl-Z wait until a command is over. A command that stopped in the middle of its
// work would leave a job stopped, too.
func holdJob(commands ...*cobra.Command) []*cobra.Command {
	return before(commands, func(cmd *cobra.Command) (func(), error) { return deferStops(cmd), nil })
}

// asRoot makes commands refuse to begin for a user who could not do what they do.
func asRoot(commands ...*cobra.Command) []*cobra.Command {
	return before(commands, func(cmd *cobra.Command) (func(), error) { return func() {}, requireRoot(cmd) })
}

// before does something before a command, and at its end what that returned.
func before(commands []*cobra.Command, begin func(*cobra.Command) (end func(), err error)) []*cobra.Command {
	for _, cmd := range commands {
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			end, err := begin(cmd)
			if err != nil {
				return err
			}
			defer end()
			return run(cmd, args)
		}
	}
	return commands
}

// requireRoot fails unless this program is root's, or has root's rights over processes, and sees them: /proc
// is that of its own pid namespace.
func requireRoot(cmd *cobra.Command) error {
	const needed = 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_KILL | 1<<unix.CAP_SYS_ADMIN
	if inner, err := proc.IsInInnerPIDNamespace(); err != nil || inner {
		return preflight.AsRefusal(fmt.Errorf("%s runs in a pid namespace, and /proc shows another pid namespace: mount /proc anew (unshare --mount-proc), or enter the mount namespace, too", cmd.CommandPath()))
	}
	if os.Geteuid() == 0 {
		return nil // what root lacks in a container, the checks name
	}
	if has, err := proc.Capabilities(); err == nil && has&needed == needed {
		return nil
	}
	return preflight.AsRefusal(fmt.Errorf("run as root: user %[2]d cannot use %[1]s", cmd.CommandPath(), os.Geteuid()))
}

// withHook is a command that begins with the configuration.
func withHook(run func(*cobra.Command, *hooks.Hook, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		hook, err := newHook()
		if err != nil {
			return err
		}
		return run(cmd, hook, args)
	}
}

func newHook() (*hooks.Hook, error) {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return nil, usageError{err}
	}
	if os.Getenv(config.EnvLog) == "" && cfg.Log.File == "" {
		cfg.Log.Level = max(cfg.Log.Level, slog.LevelWarn) // the command itself says what people need to know
	}
	return hooks.New(cfg, logging.NewCommand(logging.Options{
		Level: cfg.Log.Level,
		JSON:  cfg.Log.Format == config.JSON, File: cfg.Log.File,
	}), self.Path, "watch")
}
