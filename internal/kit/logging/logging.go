// Package logging makes the loggers of the commands. All other packages take a
// *slog.Logger; only this one knows logrus, which writes the lines.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"

	"cucriu/internal/kit/quote"
)

// Options say what is logged, and where else it is written.
type Options struct {
	Level slog.Level
	JSON  bool   // JSON objects in place of text
	File  string // absolute path; empty for standard error alone
}

// New returns the logger that the options describe. Lines go to stderr (in a hook,
// that is criu's log) and also to the configured file. If that cannot be opened, a warning says so: a log must keep
// no job from being restored.
func New(c Options, component string) *slog.Logger {
	return newLogger(c, component, formatter(c))
}

// NewCommand returns the logger of a command. What it prints on stderr is for people: a warning
// is a sentence. The configured file has lines as [New] writes them.
func NewCommand(c Options) *slog.Logger {
	if c.JSON {
		return New(c, "cucriu")
	}
	return newLogger(c, "cucriu", plain{})
}

func formatter(c Options) logrus.Formatter {
	if c.JSON {
		return &logrus.JSONFormatter{}
	}
	return &logrus.TextFormatter{FullTimestamp: true, DisableColors: true}
}

func newLogger(c Options, component string, onStderr logrus.Formatter) *slog.Logger {
	logger := logrus.New()
	logger.SetLevel(logrusslog.SlogLevel(c.Level).Level())
	logger.SetFormatter(onStderr)
	logger.SetOutput(Stderr())
	log := slog.New(logrusslog.NewHandler(logger, nil)).With("component", component)
	if c.File == "" {
		return log
	}
	file, err := os.OpenFile(c.File, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		log.Warn("nothing is written to the log file: correct log.file in the configuration, or create its directory", "error", err)
		return log
	}
	logger.AddHook(toFile{file, formatter(c)})
	return log
}

// toFile is a logrus hook that writes every line into a file.
type toFile struct {
	file   io.Writer
	format logrus.Formatter
}

func (toFile) Levels() []logrus.Level { return logrus.AllLevels }

func (f toFile) Fire(entry *logrus.Entry) error {
	line, err := f.format.Format(entry)
	if err == nil {
		_, err = f.file.Write(line)
	}
	return err
}

// plain is the format for people: the program, whether it is a warning, the message, and
// in parentheses what the message does not say.
type plain struct{}

func (plain) Format(entry *logrus.Entry) ([]byte, error) {
	var line, more strings.Builder
	line.WriteString("cucriu: ")
	if entry.Level == logrus.WarnLevel { // "error: " is what the command ends with
		line.WriteString("warning: ")
	}
	line.WriteString(entry.Message)
	for _, key := range slices.Sorted(maps.Keys(entry.Data)) {
		value := fmt.Sprint(entry.Data[key])
		switch {
		case key == "error":
			line.WriteString(": " + value)
		case key != "component" && value != "false" && !strings.Contains(entry.Message, value):
			fmt.Fprintf(&more, ", %s %s", key, value)
		}
	}
	if more.Len() > 0 {
		line.WriteString(" (" + more.String()[2:] + ")")
	}
	return []byte(quote.Lines(line.String()) + "\n"), nil
}
