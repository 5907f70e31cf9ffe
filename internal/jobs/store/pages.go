package store

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/criuimage"
	"cucriu/internal/image"
	"cucriu/internal/pages"
)

// The GPU state of a job is stored once, as far as it stays the same: what an earlier
// checkpoint has is linked from there, and what several processes have is written for one.

const (
	// baseCheckpoints is how many of the last checkpoints are looked at. State that goes back
	// and forth between two is found as well.
	baseCheckpoints = 2
	// leastShared is the part of a process's pages, as 1/leastShared, below which they are
	// taken as they are, if nothing need be copied for that.
	leastShared = 8
)

// base is what earlier checkpoints have stored, and what this one has already.
type base struct {
	pool  pages.Pool
	files map[string]File
}

// openBase opens the pages of the last checkpoints. One that is damaged is left out, with a
// warning.
func (s *Store) openBase() (b *base, warnings []string, err error) {
	all, err := s.Checkpoints()
	if err != nil {
		return nil, nil, err
	}
	b = &base{files: make(map[string]File)}
	used := 0
	for _, c := range slices.Backward(all) {
		if c.Err != nil {
			continue
		}
		if used++; used > baseCheckpoints {
			break
		}
		if err := b.add(c); err != nil {
			warnings = append(warnings, fmt.Sprintf("checkpoint %s is damaged: %v", c.Name, err))
		}
	}
	return b, warnings, nil
}

func (b *base) add(c Checkpoint) error {
	m, err := image.ReadManifest(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range c.Files {
		b.files[f.Name] = f
	}
	for _, p := range m.Processes {
		if p.Pages == nil {
			continue
		}
		if err := b.pool.Add("checkpoint "+c.Name, c.Dir, p.PID, p.Pages); err != nil {
			return err
		}
	}
	return nil
}

// pages puts the pages of all processes into the partial directory, and returns the manifest
// that describes them there.
func (d *drainer) pages(m image.Manifest) (image.Manifest, error) {
	b, warnings, err := d.store.openBase()
	if err != nil {
		return m, err
	}
	defer b.pool.Close()
	d.warnings = append(d.warnings, warnings...)
	m.Processes = slices.Clone(m.Processes)
	id := make([]byte, 8)
	rand.Read(id)
	for i := range m.Processes {
		p := &m.Processes[i]
		if p.Pages == nil {
			continue
		}
		listing, err := d.pagesOf(p, b, hex.EncodeToString(id))
		if err != nil {
			return m, fmt.Errorf("the GPU state of process %d (%s): %w", p.PID, p.Name, err)
		}
		p.Pages = listing
		if len(listing.Origins) > 0 {
			m.Version = max(m.Version, image.RewrittenVersion)
		}
		if err := b.pool.Add("this checkpoint", d.dir, p.PID, listing); err != nil {
			return m, err
		}
	}
	return m, nil
}

// pagesOf puts the pages of one process into the partial directory.
func (d *drainer) pagesOf(p *image.Process, b *base, id string) (*pages.Listing, error) {
	staged := p.Pages.Names(p.PID)
	files, err := pages.OpenFiles(d.from.Name(), p.PID, p.Pages)
	if err != nil {
		return nil, err
	}
	reader, err := pages.NewReader(files, p.PID, p.Pages)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	plan := pages.NewPlan(reader, &b.pool)
	if all, shared := plan.Bytes(); shared*leastShared <= all && d.store.codec == pages.Zero && d.canLink() {
		return p.Pages, d.files(staged, b)
	}
	end := d.done
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		end += info.Size()
	}
	var mutex sync.Mutex
	name := staged[0]
	rewritten, err := pages.Rewrite(d.ctx, plan, pages.RewriteOptions{
		Dir: d.dir, ID: id, PID: p.PID, Workers: d.store.workers, Codec: d.store.codec,
		Read: func(n int) error {
			mutex.Lock()
			d.report(name, int64(n))
			mutex.Unlock()
			return d.store.pay(d.ctx, n)
		},
		Write: func(n int) error { return d.room.take(d.dir, n) },
	})
	if err != nil {
		return nil, err
	}
	d.report(name, end-d.done) // headers and the index
	for _, err := range rewritten.Damaged {
		d.warn(err.Error())
	}
	for _, w := range rewritten.Written {
		f := File{Name: w.Name, Bytes: w.Bytes, CRC32C: w.Checksum}
		b.files[f.Name] = f
		d.add(f, f.Bytes)
	}
	for _, name := range rewritten.Linked {
		f, known := b.files[name]
		if !known {
			return nil, fmt.Errorf("%s: %w", name, os.ErrNotExist)
		}
		d.add(f, 0)
	}
	return &rewritten.Listing, nil
}

// canLink reports whether the staged directory is on the file system of the store.
func (d *drainer) canLink() bool {
	var from, to unix.Stat_t
	return unix.Stat(d.from.Name(), &from) == nil && unix.Stat(d.dir, &to) == nil && from.Dev == to.Dev
}

// files puts files into the partial directory as they are.
func (d *drainer) files(names []string, b *base) error {
	for _, name := range names {
		f, err := d.file(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if b != nil {
			b.files[name] = f
		}
	}
	return nil
}

// manifest writes a manifest that differs from the staged one.
func (d *drainer) manifest(m image.Manifest) error {
	staged, err := d.from.Lstat(image.ManifestName)
	if err != nil {
		return err
	}
	d.report(image.ManifestName, staged.Size())
	if err := m.Write(d.dir); err != nil {
		return err
	}
	f, info, err := criuimage.OpenIn(d.to, image.ManifestName)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := readAll(f, info.Size())
	if err != nil {
		return err
	}
	d.add(File{Name: image.ManifestName, Bytes: int64(len(data)), CRC32C: checksum(data)}, int64(len(data)))
	return nil
}
