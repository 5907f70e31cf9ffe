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

// smallest is a load that takes hardly longer than an empty one.
func smallest() load { return load{1, 16 * mib} }

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
	if err := opts.warmUp(ctx, smallest(), opts.modes...); err != nil {
		return err
	}
	loads := opts.plan(report, out)
	if len(loads) == 0 {
		return errors.New("no case fits this machine: name a smaller one with --cases, or another folder with --dir")
	}
	fmt.Fprintln(out, head())
	for _, l := range loads {
		// Memory that a virtual machine touches for the first time is slow.
		if err := opts.warmUp(ctx, l, opts.modes[0]); err != nil {
			return err
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
	fmt.Fprintf(out, "\n%s\nwritten to %s: results.json, results.md\n", table, opts.out)
	return nil
}

// warmUp dumps and restores a load in modes without measuring. The first time, programs are
// read from disk, and the first call of a driver is slow.
func (o options) warmUp(ctx context.Context, l load, modes ...string) error {
	if !o.warm {
		return nil
	}
	for _, mode := range modes {
		if _, err := o.try(ctx, l, mode); err != nil {
			return fmt.Errorf("%v, %s, not measured: %w", l, mode, err)
		}
	}
	return nil
}

// plan returns the cases that fit, and prints which do not.
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

// write replaces the results files.
func (r *report) write(dir string) error {
	for _, file := range []struct {
		name   string
		render func() ([]byte, error)
	}{
		{"results.json", r.results.json},
		{"results.md", r.markdown},
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
