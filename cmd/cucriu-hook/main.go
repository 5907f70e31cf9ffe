// Command cucriu-hook is criu's action script for processes that use NVIDIA
// GPUs: criu dump --action-script /usr/libexec/cucriu/cucriu-hook …, or a line
// "action-script /usr/libexec/cucriu/cucriu-hook" in criu's configuration file.
//
// criu starts it without arguments and tells it the stage through the
// environment. The hook starts itself again as the watcher of a session.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/self"
	"cucriu/internal/kit/version"
)

const usage = `cucriu-hook: criu's action script for processes that use NVIDIA GPUs

Give its path to criu, and nothing else:
  criu dump    -t PID -D DIR --shell-job --action-script /usr/libexec/cucriu/cucriu-hook
  criu restore        -D DIR --shell-job --action-script /usr/libexec/cucriu/cucriu-hook -d
or, for runc and podman, a line in /etc/criu/runc.conf:
  action-script /usr/libexec/cucriu/cucriu-hook

Configuration: $CUCRIU_CONFIG, else /etc/cucriu/config.yaml, else defaults.
`

func main() {
	self.Name("cucriu-hook")
	err := run(os.Args[1:])
	defer logging.Stderr().Flush()
	if err != nil {
		fmt.Fprint(logging.Stderr(), errorLine(len(os.Args) == 1 && os.Getenv("CRTOOLS_SCRIPT_ACTION") != "", err))
		logging.Stderr().Flush()
		if errors.As(err, new(usageError)) {
			os.Exit(2)
		}
		var late *hooks.LateError
		if errors.As(err, &late) {
			_ = late.EndCriu() // if that fails, cucriu status says what became of the job
		}
		os.Exit(1)
	}
}

// errorLine returns an error as it is printed. For criu it looks like an error of criu's own,
// because container engines show nothing else of criu's log. Further lines are indented, so
// that one failure is one error.
func errorLine(forCriu bool, err error) string {
	text := quote.Lines(err.Error())
	if !forCriu {
		return fmt.Sprintln("cucriu-hook: error:", text)
	}
	images := os.Getenv("CRTOOLS_IMAGE_DIR") // a name that ends with criu
	if dir, linkErr := os.Readlink(images); linkErr == nil {
		text = strings.ReplaceAll(text, images+"/", dir+"/")
	}
	return "Error (cucriu-hook): " + strings.ReplaceAll(text, "\n", "\n  ") + "\n"
}

// usageError is wrong usage of this program, or a configuration that cannot be used. Its exit
// status is 2, as in cucriu. criu only checks whether the status is 0.
type usageError struct{ error }

func run(args []string) error {
	watches := len(args) == 2 && args[0] == "watch"
	switch {
	case len(args) == 1 && args[0] == "--version":
		fmt.Println("cucriu-hook", version.Version)
		return nil
	case len(args) == 1 && (args[0] == "--help" || args[0] == "-h"):
		fmt.Print(usage)
		return nil
	case len(args) != 0 && !watches:
		return usageError{fmt.Errorf("unknown arguments %q: criu runs this program without arguments (see --help)", args)}
	}
	if err := proc.FitLimits(true); err != nil {
		return err
	}
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return usageError{err}
	}
	component := "hook"
	if watches {
		component = "watcher"
	}
	self.LimitMemory()
	log := logging.New(logging.Options{
		Level: cfg.Log.Level, JSON: cfg.Log.Format == config.JSON,
		File: cfg.Log.File,
	}, component)
	hook, err := hooks.New(cfg, log, self.Path, "watch")
	if err != nil {
		return err
	}
	if watches {
		return hooks.Watch(hook, args[1])
	}
	// criu's log may be a pipe whose reader has ended. That must not stop the hook in the
	// middle of the protocol.
	signal.Ignore(unix.SIGPIPE)
	return hooks.Run(context.Background(), hook, os.Getenv)
}
