package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/pages"
)

// The GPU state of a job is stored once, as far as it stays the same: what an earlier
// checkpoint has is linked from there, and what several processes have is written for one.

// If less than 1/leastShared of a process's pages is in earlier checkpoints, its files are linked as
// they are, where that copies nothing, instead of being compared and written again.
const leastShared = 8

// workers is how many threads compare and compress: few, for the job's sake. Each writes a file of its
// own.
const workers = 2

// openPages opens the pages of earlier checkpoints. One that is damaged is left out, with a warning.
func (p *publication) openPages() *pages.Pool {
	pool := new(pages.Pool)
	for _, c := range p.bases {
		m, err := imagedir.ReadManifest(c.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, process := range m.Processes {
			if process.Pages != nil && err == nil {
				err = pool.Add("checkpoint "+c.Name, c.Dir, process.PID, process.Pages)
			}
		}
		if err != nil {
			p.warn(fmt.Sprintf("checkpoint %s is damaged: %v", c.Name, err))
		}
	}
	return pool
}

// pages puts the pages of all processes into the partial directory, and returns the manifest
// that describes them there.
func (p *publication) pages(m imagedir.Manifest) (imagedir.Manifest, error) {
	pool := p.openPages()
	defer pool.Close()
	m.Processes = slices.Clone(m.Processes)
	random := make([]byte, 8)
	rand.Read(random)
	for i := range m.Processes {
		process := &m.Processes[i]
		if process.Pages == nil {
			continue
		}
		listing, err := p.pagesOf(m, process, pool, hex.EncodeToString(random))
		if err != nil {
			return m, fmt.Errorf("the GPU state of process %d (%s): %w", process.PID, process.Name, err)
		}
		process.Pages = listing
		if len(listing.Origins) > 0 {
			m.Version = max(m.Version, imagedir.RewrittenVersion)
		}
		if err := pool.Add("this checkpoint", p.dir, process.PID, listing); err != nil {
			return m, err
		}
	}
	m.Complete()
	return m, nil
}

// pagesOf puts the pages of one process into the partial directory. Their files need no checksum in the
// record: the index and each chunk have theirs.
func (p *publication) pagesOf(of imagedir.Manifest, process *imagedir.Process, pool *pages.Pool, id string) (*pages.Listing, error) {
	reader, err := of.OpenPagesOf(process, p.from.Name())
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	plan := pages.NewPlan(reader, pool)
	listing, linked, asIs := process.Pages, []string(nil), false
	if all, shared := plan.Bytes(); shared*leastShared <= all && p.store.codec == pages.Zero {
		if asIs, err = p.linkPages(reader.Files(), listing.Names(process.PID)); err != nil {
			return nil, err
		}
	}
	if !asIs {
		rewritten, err := pages.Rewrite(p.ctx, plan, pages.RewriteOptions{
			Dir: p.dir, ID: id, PID: process.PID, Workers: workers, Codec: p.store.codec,
			Write: func(n int) error { return p.room.take(p.dir, n) },
		})
		if err != nil {
			return nil, err
		}
		for _, err := range rewritten.Damaged {
			p.warn(err.Error())
		}
		listing, linked = &rewritten.Listing, rewritten.Linked
	}
	sizes := listing.Sizes()
	for i, name := range listing.Names(process.PID) {
		written := sizes[i]
		if slices.Contains(linked, name) {
			written = 0
		}
		p.add(File{Name: name, Bytes: sizes[i]}, written)
	}
	return listing, nil
}

// linkPages gives staged files a second name in the partial directory. It reports false if they are on
// another file system, or on one without links.
func (p *publication) linkPages(files []*os.File, names []string) (bool, error) {
	for i, f := range files {
		linked, err := p.link(f, names[i])
		if err != nil || !linked {
			return false, err
		}
		if err := p.store.step(p.ctx, stepFile); err != nil {
			return false, err
		}
	}
	return true, nil
}
