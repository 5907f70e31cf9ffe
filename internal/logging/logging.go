// Package logging makes the loggers of the commands. All other packages take a
// *slog.Logger; only this one knows logrus, which writes the lines.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"

	"cucriu/hooks/config"
)

// New returns the logger that a configuration describes. Lines go to stderr (in a hook,
// that is criu's log) and also to the configured file.
func New(c config.Log, component string) (*slog.Logger, error) {
	logger := logrus.New()
	logger.SetLevel(logrusslog.SlogLevel(c.Level).Level())
	if c.Format == config.JSON {
		logger.SetFormatter(&logrus.JSONFormatter{})
	} else {
		logger.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	}
	logger.SetOutput(Stderr())
	if c.File != "" {
		file, err := os.OpenFile(c.File, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("log file: %w", err)
		}
		logger.SetOutput(io.MultiWriter(Stderr(), file))
	}
	return slog.New(logrusslog.NewHandler(logger, nil)).With("component", component), nil
}
