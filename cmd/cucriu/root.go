package main

import (
	"encoding/json"
	"io"
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

The work is done by cucriu-hook, criu's action script. This command shows what
became of jobs, brings back those whose dump was cut off, and explains how the
GPUs of an image map to this host's.`,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(recoverCommand(), statusCommand(), mapCommand(), gpusCommand(),
		stateCommand(), lockCommand(), suspendCommand(), resumeCommand(), unlockCommand(), inspectCommand(), watchCommand())
	return root
}

func newHook() (*hooks.Hook, error) {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return nil, err
	}
	log, err := logging.New(cfg.Log, "cucriu")
	if err != nil {
		return nil, err
	}
	return &hooks.Hook{Config: cfg, Log: log}, nil
}

func writeJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "\t")
	return encoder.Encode(value)
}

func jsonFlag(cmd *cobra.Command, value *bool) {
	cmd.Flags().BoolVar(value, "json", false, "print JSON for machines")
}
