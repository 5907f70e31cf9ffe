// Package delta knows what of an image its destination does not have from an earlier one of the same
// job: of GPU state and of ordinary memory.
package delta

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/units"
	"cucriu/internal/migrate/prepare"
)

// Delta is what of an image the destination does not have from an earlier round.
type Delta struct {
	Dir string // holds what was written anew, and links to what the destination has
	// Links and Parents are names of files of the earlier round that the image has as well: in its
	// directory, and where criu looks for memory that has not changed.
	Links, Parents []string
	// Replaced are the files of the image that the destination does not need, as Dir has others.
	Replaced []string
}

// leastShared is the part of the GPU state, as 1/leastShared, below which all of it is sent.
const leastShared = 8

// Compare finds out, byte by byte, what of an image is as in that of an earlier round, and writes
// the rest into a new directory, named by an ID. The destination maps areas up to largest writable: see
// [criuimage.LargestArea].
func Compare(ctx context.Context, dir, id, earlier, current string, largest uint64) (*Delta, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	d := &Delta{Dir: dir}
	if err := d.compareGPU(ctx, id, earlier, current); err != nil {
		return nil, err
	}
	return d, d.compareMemory(ctx, earlier, current, largest)
}

// compareGPU compares the GPU state.
func (d *Delta) compareGPU(ctx context.Context, id, earlier, current string) error {
	before, err := imagedir.ReadManifest(earlier)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no process used CUDA
	}
	if err != nil {
		return err
	}
	now, err := imagedir.ReadManifest(current)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pool := new(pages.Pool)
	defer pool.Close()
	for _, p := range before.Processes {
		if p.Pages == nil {
			continue
		}
		if err := pool.Add("the round before", earlier, p.PID, p.Pages); err != nil {
			return err
		}
	}
	plans, err := plan(now, current, pool)
	defer func() {
		for _, p := range plans {
			p.reader.Close()
		}
	}()
	if err != nil {
		return err
	}
	var all, shared int64
	for _, p := range plans {
		a, s := p.plan.Bytes()
		all, shared = all+a, shared+s
	}
	if shared*leastShared <= all && now.Base == "" {
		return nil
	}
	room, err := prepare.Free(d.Dir)
	if err == nil && room < all-shared {
		err = fmt.Errorf("%s for the GPU memory that has changed: %w", units.Size(all-shared), unix.ENOSPC)
	}
	if err != nil {
		return err
	}
	return d.write(ctx, id, now, plans)
}

// processPlan is the plan for the pages of one process.
type processPlan struct {
	process *imagedir.Process
	reader  *pages.Reader
	plan    *pages.Plan
}

func plan(m imagedir.Manifest, dir string, pool *pages.Pool) (plans []processPlan, err error) {
	for i := range m.Processes {
		p := &m.Processes[i]
		if p.Pages == nil {
			continue
		}
		reader, err := m.OpenPagesOf(p, dir)
		if err != nil {
			return plans, err
		}
		plans = append(plans, processPlan{p, reader, pages.NewPlan(reader, pool)})
	}
	return plans, nil
}

// write writes the pages that have changed, and the manifest that finds all of them.
func (d *Delta) write(ctx context.Context, id string, m imagedir.Manifest, plans []processPlan) error {
	for _, p := range plans {
		d.Replaced = append(d.Replaced, p.process.Pages.Names(p.process.PID)...)
		rewritten, err := pages.Rewrite(ctx, p.plan, pages.RewriteOptions{
			Dir: d.Dir, ID: id, PID: p.process.PID, Workers: runtime.NumCPU(),
		})
		if err != nil {
			return fmt.Errorf("the GPU state of process %d (%s): %w", p.process.PID, p.process.Name, err)
		}
		for _, name := range rewritten.Linked {
			if !slices.Contains(d.Links, name) { // processes may share one
				d.Links = append(d.Links, name)
			}
		}
		p.process.Pages = &rewritten.Listing
		if len(rewritten.Listing.Origins) > 0 {
			m.Version = max(m.Version, imagedir.RewrittenVersion)
		}
	}
	d.Replaced = append(d.Replaced, imagedir.ManifestName)
	m.Complete()
	return m.Write(d.Dir)
}
