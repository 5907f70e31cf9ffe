package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/criuimage"
	"cucriu/internal/pagemap"
)

// The memory of a job's processes is a small number of large files of criu's, most pages of which
// are those of the checkpoint before. A checkpoint may hold the pages that differ only. The others
// are in its directory "parent", where criu looks for them: it has links to the files of an earlier
// checkpoint, which holds all pages. So a checkpoint still has all that it needs, and all of it
// can be removed. There are no chains: what is in parent is never a difference itself.
//
// What differs grows, as the earlier checkpoint gets older. At a half, all is stored again, and is
// what later checkpoints are compared with.

const parentDir = criuimage.ParentName

// memory puts those images of memory into the partial directory that are stored as a difference,
// and returns the names of the staged files that they stand for. The hosts of a job are set
// up alike.
func (d *drainer) memory(names []string) (put map[string]bool, err error) {
	put = make(map[string]bool)
	bases, err := d.store.memoryBases()
	if err != nil || len(bases) == 0 {
		return put, err
	}
	err = criuimage.Divide(d.from, names, criuimage.LargestArea(), func(staged *criuimage.Memory) error {
		defer staged.Close()
		divided, err := d.difference(staged, bases)
		if divided {
			put[staged.Name], put[staged.PagesName] = true, true
		}
		return err
	})
	return put, err
}

func hasFile(c Checkpoint, name string) bool {
	return slices.ContainsFunc(c.Files, func(f File) bool { return f.Name == name })
}

// difference puts memory into the partial directory as a difference, if that pays.
func (d *drainer) difference(staged *criuimage.Memory, bases []Checkpoint) (divided bool, err error) {
	at := slices.IndexFunc(bases, func(c Checkpoint) bool { return hasFile(c, staged.Name) })
	if at < 0 {
		return false, nil
	}
	base, err := openMemoryBase(bases[at], staged.Name)
	if err != nil {
		d.warn((&DamageError{Checkpoint: bases[at].Name, Err: err}).Error())
		return false, nil
	}
	defer base.close()
	difference, err := d.compare(staged, base)
	var damage *DamageError
	switch {
	case errors.Is(err, pagemap.ErrDiffers):
		return false, nil
	case errors.As(err, &damage):
		d.warn(err.Error())
		return false, nil
	case err != nil:
		return false, err
	}
	linked, err := d.parent(staged, base)
	if err != nil || !linked {
		d.done -= staged.Bytes // it will be copied
		return false, err
	}
	if err := d.changed(staged.Name, difference); err != nil {
		return false, err
	}
	info, err := d.from.Lstat(staged.Name)
	if err == nil {
		d.report(staged.Name, info.Size())
	}
	return true, err
}

// compare compares staged memory with a base. It fails with [pagemap.ErrDiffers] if too little is
// the same, and with a [DamageError] if the base is not what was written.
func (d *drainer) compare(staged *criuimage.Memory, base *memoryBase) (_ pagemap.Difference, err error) {
	if base.Validate() != nil {
		return pagemap.Difference{}, pagemap.ErrDiffers
	}
	done := d.done
	defer func() {
		if err != nil {
			d.done = done // all of it will be copied
		}
	}()
	difference, err := pagemap.Compare(staged.Dump, base.Dump, staged.Own, staged.Bytes/2, func(n int) error {
		d.report(staged.Name, min(int64(n), done+staged.Bytes-d.done))
		return d.store.pay(d.ctx, n)
	})
	same := difference.Map.ParentBytes()
	switch sum := base.pagesRecord.CRC32C; {
	case errors.Is(err, pagemap.ErrUnreadable):
		return difference, &DamageError{Checkpoint: base.checkpoint, File: base.pagesRecord.Name, Err: err}
	case err != nil:
		return difference, err
	case same < criuimage.MinDivided || 2*same < base.Bytes:
		return difference, pagemap.ErrDiffers
	case difference.Checksum != sum:
		err := fmt.Errorf("its CRC-32C is %08x, and %08x was written", difference.Checksum, sum)
		return difference, &DamageError{Checkpoint: base.checkpoint, File: base.pagesRecord.Name, Err: err}
	}
	d.report(staged.Name, done+staged.Bytes-d.done)
	return difference, nil
}

// parent links a base into the parent of the partial directory. It reports false where the file
// system has no links.
func (d *drainer) parent(staged *criuimage.Memory, base *memoryBase) (bool, error) {
	if err := d.to.Mkdir(parentDir, 0o700); err == nil {
		d.dirs = append(d.dirs, parentDir)
	} else if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	pages := parentDir + "/" + staged.PagesName
	linked, err := d.linkBase(base.File, pages)
	if err != nil || !linked {
		if d.to.Remove(parentDir) == nil {
			d.dirs = slices.DeleteFunc(d.dirs, func(dir string) bool { return dir == parentDir })
		}
		return false, err
	}
	d.add(File{Name: pages, Bytes: base.pagesRecord.Bytes, CRC32C: base.pagesRecord.CRC32C}, 0)
	if err := d.store.step(d.ctx, stepFile); err != nil {
		return false, err
	}
	if base.Map.PagesID == staged.Map.PagesID {
		if linked, err = d.linkBase(base.pagemap, parentDir+"/"+staged.Name); err != nil {
			return false, err
		}
		if linked {
			d.add(File{Name: parentDir + "/" + staged.Name, Bytes: base.pagemapRecord.Bytes, CRC32C: base.pagemapRecord.CRC32C}, 0)
			return true, d.store.step(d.ctx, stepFile)
		}
	}
	// The numbers are those of this dump. In parent there may be memory of several.
	m := base.Map
	m.PagesID = staged.Map.PagesID
	return true, d.pagemap(parentDir+"/"+staged.Name, m)
}

// linkBase is link. Somebody may have removed the checkpoint just now.
func (d *drainer) linkBase(f *os.File, name string) (bool, error) {
	linked, err := d.link(f, name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return linked, err
}

// changed writes a difference.
func (d *drainer) changed(name string, difference pagemap.Difference) error {
	if err := d.write(difference.Map.PagesName(), difference.Changed()); err != nil {
		return err
	}
	return d.pagemap(name, difference.Map)
}

func (d *drainer) pagemap(name string, m pagemap.Map) error {
	r, w := io.Pipe()
	go func() {
		_, err := m.WriteTo(w)
		w.CloseWithError(err)
	}()
	defer r.Close() // ends the writer
	return d.write(name, r)
}

// write writes a file that is not in the staged directory as it is.
func (d *drainer) write(name string, from io.Reader) error {
	target, err := d.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f, err := d.copy(name, from, target, false, func(string, int64) {})
	if err := errors.Join(err, target.Close()); err != nil {
		return err
	}
	d.add(f, f.Bytes)
	return d.store.step(d.ctx, stepFile)
}
