// Command cucriu is the companion of criu for processes that use NVIDIA GPUs. exit.go turns errors
// into exit statuses, in one place; usage.go and flags.go make whatever is wrong with the
// arguments wrong usage.
package main

import (
	"errors"
	"fmt"
	"os"

	"cucriu/internal/logging"
	"cucriu/internal/quote"
	"cucriu/internal/self"
)

func main() {
	self.Name("cucriu")
	ctx := untilSignal()
	err := execute(ctx, rootCommand())
	if err != nil && !errors.As(err, new(exitStatus)) {
		fmt.Fprintln(logging.Stderr(), "cucriu: error:", quote.Lines(err.Error()))
	}
	logging.Stderr().Flush()
	os.Exit(exitCode(ctx, err))
}
