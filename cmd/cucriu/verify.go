package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/spf13/cobra"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/units"
)

// verification is what the verify command shows.
type verification struct {
	Dir   string `json:"dir"`
	Whole bool   `json:"whole"`
	Bytes int64  `json:"bytes"`
	// Checksums says that criu's files have some.
	Checksums bool   `json:"checksums"`
	Error     string `json:"error,omitempty"`
}

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Read all of an image and verify that it is complete and undamaged",
		Long: `
The GPU state is compared with its checksums, and so are criu's files in an image of
cucriu dump or a checkpoint of a long job. Without checksums, those of the processes
are decoded, all files that they name must be there with their sizes, and everything
is read once.

Nothing is changed. The exit status is 1 if the image is damaged or incomplete, and 3
if there is no image, or it cannot be read here.`,
		Example: "  cucriu verify /var/lib/images/job1\n  cucriu verify --json .",
		Args:    oneArgument("one image directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			img := store.OpenImage(dir)
			if !img.IsCheckpoint() {
				if err := requireImage(dir); err != nil {
					return err
				}
			}
			var done atomic.Int64
			progress := newProgress(cmd)
			progress.measured("reading "+dir, func() (int64, int64) { return done.Load(), durable.MatchedBytes(dir, "*") })
			summed, err := img.Verify(cmd.Context(), runtime.GOMAXPROCS(0), func(bytes int) { done.Add(int64(bytes)) })
			progress.stop()
			if cmd.Context().Err() != nil {
				return errors.New("cancelled")
			}
			v := verification{Dir: dir, Whole: err == nil, Bytes: done.Load(), Checksums: summed}
			if err != nil {
				remedy := durable.HostRemedy(err)
				if !errors.As(err, new(*fault.Explained)) {
					err = fmt.Errorf("%w: %s", err, cmp.Or(remedy, preflight.RemedyOf(preflight.FindingImage)))
				}
				if c, readErr := store.Read(dir); readErr == nil && len(c.Jobs) > 0 {
					err = fmt.Errorf("%w (jobs were started from it: %s)", err, quote.Names(c.Jobs))
				}
				if err = fmt.Errorf("%s: %w", dir, err); remedy != "" { // it may well be as it was written
					err = preflight.AsRefusal(err)
				}
				v.Error = err.Error()
			}
			return errors.Join(show(cmd, v, func(out io.Writer) {
				switch {
				case v.Whole && v.Checksums:
					fmt.Fprintf(out, "%s is complete and undamaged: %s\n", dir, units.Size(v.Bytes))
				case v.Whole:
					fmt.Fprintf(out, "%s is complete: %s; criu's files: no checksums\n", dir, units.Size(v.Bytes))
				}
			}), err)
		},
	}
	jsonFlag(cmd)
	return cmd
}
