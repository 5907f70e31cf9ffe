package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Freezer is a control group that can freeze its processes.
type Freezer struct {
	Dir string `json:"dir"`
	// V1 says that the group belongs to the cgroup v1 freezer controller, whose frozen
	// tasks answer no ptrace request. Otherwise the group belongs to cgroup v2.
	V1 bool `json:"v1"`
}

// FreezersOf returns the freezers that a process is in, innermost first. It leaves out the
// roots of the hierarchies, which cannot freeze. To ask about many processes, read the
// [Hierarchies] once.
func FreezersOf(pid int) ([]Freezer, error) {
	hierarchies, err := ReadHierarchies()
	if err != nil {
		return nil, err
	}
	return hierarchies.FreezersOf(pid)
}

// FreezersOf returns the freezers that a process is in, innermost first.
func (h *Hierarchies) FreezersOf(pid int) ([]Freezer, error) {
	var freezers []Freezer
	err := h.each(pid, "freezer", func(dir string, v1, root bool) error {
		f := Freezer{Dir: dir, V1: v1}
		if _, err := os.Stat(f.control()); err == nil && !root {
			freezers = append(freezers, f)
		}
		return nil
	})
	return freezers, err
}

// Frozen reports whether this group itself, and not one above it, was told to freeze.
func (f Freezer) Frozen() (bool, error) {
	file := "cgroup.freeze"
	if f.V1 {
		file = "freezer.self_freezing"
	}
	data, err := os.ReadFile(filepath.Join(f.Dir, file))
	return strings.TrimSpace(string(data)) == "1", err
}

// Freeze freezes the group and waits until all its tasks are frozen.
func (f Freezer) Freeze(ctx context.Context) error { return f.set(ctx, true) }

// Thaw thaws the group and waits until its tasks can run.
func (f Freezer) Thaw(ctx context.Context) error { return f.set(ctx, false) }

func (f Freezer) set(ctx context.Context, freeze bool) error {
	order, settled := map[bool]string{true: "1", false: "0"}[freeze], map[bool]string{true: "frozen 1", false: "frozen 0"}[freeze]
	event := filepath.Join(f.Dir, "cgroup.events")
	if f.V1 {
		order = map[bool]string{true: "FROZEN", false: "THAWED"}[freeze]
		settled, event = order, f.control()
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		// A v1 group that is not yet frozen must be told again.
		if err := os.WriteFile(f.control(), []byte(order), 0); err != nil {
			return fmt.Errorf("set the freezer: %w", err)
		}
		data, err := os.ReadFile(event)
		if err != nil {
			return fmt.Errorf("read the freezer: %w", err)
		}
		if strings.Contains(string(data), settled) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("freezer %s does not become %q: %w", f.Dir, settled, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func (f Freezer) control() string {
	if f.V1 {
		return filepath.Join(f.Dir, "freezer.state")
	}
	return filepath.Join(f.Dir, "cgroup.freeze")
}

// FrozenBy returns the freezers that currently keep a process from running.
func FrozenBy(pid int) ([]Freezer, error) {
	hierarchies, err := ReadHierarchies()
	if err != nil {
		return nil, err
	}
	return hierarchies.FrozenBy(pid)
}

// FrozenBy returns the freezers that currently keep a process from running.
func (h *Hierarchies) FrozenBy(pid int) ([]Freezer, error) {
	freezers, err := h.FreezersOf(pid)
	if err != nil {
		return nil, err
	}
	var frozen []Freezer
	var errs []error
	for _, f := range freezers {
		isFrozen, err := f.Frozen()
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
		if isFrozen {
			frozen = append(frozen, f)
		}
	}
	return frozen, errors.Join(errs...)
}
