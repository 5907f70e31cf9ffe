package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"cucriu/hooks"
	"cucriu/internal/config"
	"cucriu/internal/logging"
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

Exit status: 0 success; 1 failure, the job is as it was before, or its image is
intact and complete; 2 wrong usage; 3 refused by a check before anything was
touched; 4 the job is not back yet, see cucriu status; 5 failure, and the job or
a part of it has ended meanwhile; 128 and the signal's number: given up on a
signal, everything is undone.`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(dumpCommand(), restoreCommand(), checkCommand(), recoverCommand(), statusCommand(), mapCommand(), gpusCommand(),
		stateCommand(), lockCommand(), suspendCommand(), resumeCommand(), unlockCommand(), inspectCommand(), watchCommand())
	return root
}

func newHook() (*hooks.Hook, error) {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return nil, err
	}
	if os.Getenv(config.EnvLog) == "" && cfg.Log.File == "" {
		cfg.Log.Level = max(cfg.Log.Level, slog.LevelWarn) // the command says what people need to know
	}
	log, err := logging.New(cfg.Log, "cucriu")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &hooks.Hook{Config: cfg, Log: log, Watcher: []string{self, "watch"}}, nil
}

func writeJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "\t")
	return encoder.Encode(value)
}

func jsonFlag(cmd *cobra.Command, value *bool) {
	cmd.Flags().BoolVar(value, "json", false, "print JSON for machines")
}
