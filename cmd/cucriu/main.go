// Command cucriu is the companion of criu for processes that use NVIDIA GPUs.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	ctx := untilSignal()
	err := execute(ctx, rootCommand())
	if err != nil && !errors.As(err, new(exitStatus)) {
		fmt.Fprintln(os.Stderr, "cucriu: error:", err)
	}
	os.Exit(exitCode(ctx, err))
}
