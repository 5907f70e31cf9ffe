package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// warmUp is a load that is dumped and restored once in each mode before anything is
// measured: the programs are read from the disk, and the first call of a driver is
// slow.
func warmUp() load { return load{1, 16 * mib} }

// measureAll measures everything, and writes the results after each run.
func measureAll(ctx context.Context, opts options, out io.Writer) error {
	for _, program := range [][]string{{"bin", "cucriu-hook"}, {"build", "test", "serial-hook"}, {"build", "workload", "cudawork"}, {"build", "cudasim", "cudasim-run"}} {
		if _, err := os.Stat(opts.artefact(program...)); err != nil {
			return fmt.Errorf("%w: run make build sim workload", err)
		}
	}
	for _, dir := range []string{opts.dir, opts.out} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	report, err := opts.newReport(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", report.machine)
	for _, mode := range opts.modes {
		if _, err := opts.try(ctx, warmUp(), mode); err != nil {
			return fmt.Errorf("warm-up, %s: %w", mode, err)
		}
	}
	loads := opts.plan(report, out)
	if len(loads) == 0 {
		return errors.New("no case fits this machine: name a smaller one with --cases, or another folder with --dir")
	}
	fmt.Fprintln(out, head())
	for _, l := range loads {
		// So much memory is slow when it is first touched, on virtual machines too.
		if _, err := opts.try(ctx, l, opts.modes[0]); err != nil {
			return fmt.Errorf("%v, warm-up, %s: %w", l, opts.modes[0], err)
		}
		for repetition := range opts.repeat {
			for _, mode := range opts.modesOf(repetition) {
				run, err := opts.try(ctx, l, mode)
				if err != nil {
					return fmt.Errorf("%v, %s: %w", l, mode, err)
				}
				report.results.add(l, mode, run)
				report.results.sort(loads)
				fmt.Fprintln(out, row(l, mode, run))
				if err := report.write(opts.out); err != nil {
					return err
				}
			}
		}
	}
	table, err := report.markdown()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\nwritten to %s: results.json, results.md, downtime.svg\n", table, opts.out)
	return nil
}

// plan leaves out the cases that do not fit, and says so.
func (o options) plan(report *report, out io.Writer) []load {
	loads := o.loads
	if len(loads) == 0 && o.real {
		loads = realLoads()
	} else if len(loads) == 0 {
		loads = simulatedLoads()
	}
	var fit []load
	for _, l := range loads {
		if why := report.room.misses(l); why != "" {
			why = fmt.Sprintf("%s is left out: it %s", l.title(), why)
			report.skipped = append(report.skipped, why)
			fmt.Fprintln(out, why)
			continue
		}
		fit = append(fit, l)
	}
	return fit
}

// write replaces the three files of the results.
func (r *report) write(dir string) error {
	for _, file := range []struct {
		name   string
		render func() ([]byte, error)
	}{
		{"results.json", r.results.json},
		{"results.md", r.markdown},
		{"downtime.svg", r.results.svg},
	} {
		data, err := file.render()
		if err != nil {
			return fmt.Errorf("%s: %w", file.name, err)
		}
		if err := renameio.WriteFile(filepath.Join(dir, file.name), data, 0o644); err != nil {
			return fmt.Errorf("write the results: %w", err)
		}
	}
	return nil
}
