package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/internal/logging"
	"cucriu/internal/self"
	"cucriu/internal/version"
)

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cucriu",
		Short: "Dump, restore and migrate processes that use NVIDIA GPUs, with stock CRIU",
		Long: `cucriu lets stock CRIU dump and restore processes that use NVIDIA GPUs.

cucriu dump and cucriu restore drive criu by themselves. For those who drive it
otherwise (by hand, runc, Podman, Kubernetes) there is cucriu-hook, criu's action
script. The other commands show what became of jobs, bring back those whose dump
was cut off, and explain how the GPUs of an image map to this host's.

The exit status says what became of the job: cucriu help exit-status. The
configuration is /etc/cucriu/config.yaml, or what CUCRIU_CONFIG names; one that
cannot be used is wrong usage.`,
		Example:       "  cucriu check -t 4711\n  cucriu dump -t 4711 -D /var/lib/images/job1\n  cucriu restore -D /var/lib/images/job1",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(asRoot(holdsJob(dumpCommand()), restoreCommand(), holdsJob(recoverCommand()), statusCommand(), stateCommand(),
		holdsJob(lockCommand()), holdsJob(suspendCommand()), holdsJob(resumeCommand()), holdsJob(unlockCommand()), watchCommand(), calibrateHelperCommand(),
		holdsJob(migrateCommand()), holdsJob(receiveCommand()))...)
	root.AddCommand(placeCommands()...)
	root.AddCommand(runCommand(), jobsCommand(), checkCommand(), mapCommand(), gpusCommand(), inspectCommand(), exitStatusTopic())
	return root
}

func newHook() (*hooks.Hook, error) {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return nil, usageError{err}
	}
	if os.Getenv(config.EnvLog) == "" && cfg.Log.File == "" {
		cfg.Log.Level = max(cfg.Log.Level, slog.LevelWarn) // the command itself says what people need to know
	}
	log, err := logging.New(cfg.Log, "cucriu")
	if err != nil {
		return nil, usageError{err}
	}
	return hooks.New(cfg, log, self.Path, "watch")
}

func writeJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "\t")
	return encoder.Encode(value)
}

func jsonFlag(cmd *cobra.Command, value *bool) {
	cmd.Flags().BoolVar(value, "json", false, "print JSON for machines")
}
