// Command cucriu is the companion of criu for processes that use NVIDIA GPUs. exit.go turns errors
// into exit statuses, in one place; usage.go and flags.go make whatever is wrong with the
// arguments wrong usage.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"cucriu/internal/kit/logging"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/self"
)

func main() {
	self.Name("cucriu")
	ctx := untilSignal()
	err := execute(ctx, rootCommand())
	if err != nil && !errors.As(err, new(exitStatus)) {
		fmt.Fprintln(logging.Stderr(), "cucriu: error:", quote.Lines(errorText(err)))
	}
	logging.Stderr().Flush()
	os.Exit(exitCode(ctx, err))
}

// errorText is the text of an error, with what the system's own text does not say. A relative path names nothing below
// a directory that is gone.
func errorText(err error) string {
	text := err.Error()
	if failed := new(os.SyscallError); errors.As(err, &failed) && failed.Syscall == "getwd" {
		text += `: the current directory was removed or replaced: cd "$PWD", or to another directory, and try again`
	}
	if strings.Contains(strings.ToLower(text), "file too large") { // said by cucriu, criu or a watcher
		text += ": raise the limit of file sizes with ulimit -f unlimited (Slurm passes limits on to its jobs)"
	}
	return text
}
