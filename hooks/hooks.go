package hooks

import (
	"log/slog"

	"cucriu/hooks/config"
)

// New makes a hook with a configuration, which [config.Load] reads as the commands do.
// watcher is the command that watches over a job; without one it is that of [FindWatcher].
func New(cfg config.Config, log *slog.Logger, watcher ...string) (*Hook, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(watcher) == 0 {
		var err error
		if watcher, err = FindWatcher(); err != nil {
			return nil, err
		}
	}
	return &Hook{Config: cfg, Log: log, Watcher: watcher}, nil
}
