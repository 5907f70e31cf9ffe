package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"cucriu/criuutil/pages"
	"cucriu/hooks/image"
)

// delta is what of an image the destination does not have from an earlier round.
type delta struct {
	dir   string   // holds what was written anew, and links to what the destination has
	links []string // names of files of the earlier round that the image has as well
	// replaced are the files of the image that the destination does not need.
	replaced []string
	unshared bool // there is next to nothing in common: the image is sent as it is
}

// leastShared is the part of the pages, as 1/leastShared, below which all of them are sent.
const leastShared = 8

// newDelta compares the GPU state in an image with that of an earlier round, byte by byte, and
// writes what has changed into dir.
func newDelta(ctx context.Context, earlier, current, dir string) (*delta, error) {
	before, err := image.ReadManifest(earlier)
	if errors.Is(err, os.ErrNotExist) {
		return &delta{unshared: true}, nil // no process used CUDA
	}
	if err != nil {
		return nil, err
	}
	now, err := image.ReadManifest(current)
	if errors.Is(err, os.ErrNotExist) {
		return &delta{unshared: true}, nil
	}
	if err != nil {
		return nil, err
	}
	pool := new(pages.Pool)
	defer pool.Close()
	for _, p := range before.Processes {
		if p.Pages == nil {
			continue
		}
		if err := pool.Add("the round before", earlier, p.PID, p.Pages); err != nil {
			return nil, err
		}
	}
	plans, err := planDelta(now, current, pool)
	defer func() {
		for _, p := range plans {
			p.reader.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	var all, shared int64
	for _, p := range plans {
		a, s := p.plan.Bytes()
		all, shared = all+a, shared+s
	}
	d := &delta{dir: dir}
	if shared*leastShared <= all {
		d.unshared = true
		return d, nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return d, d.write(ctx, now, plans)
}

// processPlan is the plan for the pages of one process.
type processPlan struct {
	process *image.Process
	reader  *pages.Reader
	plan    *pages.Plan
}

func planDelta(m image.Manifest, dir string, pool *pages.Pool) (plans []processPlan, err error) {
	for i := range m.Processes {
		p := &m.Processes[i]
		if p.Pages == nil {
			continue
		}
		files, err := pages.OpenFiles(dir, p.PID, p.Pages)
		if err != nil {
			return plans, err
		}
		reader, err := pages.NewReader(files, p.PID, p.Pages)
		if err != nil {
			return plans, err
		}
		plans = append(plans, processPlan{p, reader, pages.NewPlan(reader, pool)})
	}
	return plans, nil
}

// write writes the pages that have changed, and the manifest that finds all of them.
func (d *delta) write(ctx context.Context, m image.Manifest, plans []processPlan) error {
	id := newID()
	for _, p := range plans {
		d.replaced = append(d.replaced, p.process.Pages.Names(p.process.PID)...)
		rewritten, err := pages.Rewrite(ctx, p.plan, pages.RewriteOptions{
			Dir: d.dir, ID: id, PID: p.process.PID, Workers: runtime.NumCPU(),
			Read: func(int) error { return ctx.Err() }, Write: func(int) error { return ctx.Err() },
		})
		if err != nil {
			return fmt.Errorf("the GPU state of process %d (%s): %w", p.process.PID, p.process.Name, err)
		}
		for _, name := range rewritten.Linked {
			if !slices.Contains(d.links, name) { // processes may share one
				d.links = append(d.links, name)
			}
		}
		p.process.Pages = &rewritten.Listing
		if len(rewritten.Listing.Origins) > 0 {
			m.Version = max(m.Version, image.RewrittenVersion)
		}
	}
	d.replaced = append(d.replaced, image.ManifestName)
	return m.Write(d.dir)
}
