package store

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/pagemap"
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
// and adds the staged files that they replace to done. The hosts of a job are set up alike.
func (p *publication) memory(names []string, done map[string]bool) error {
	if len(p.bases) == 0 {
		return nil
	}
	return criuimage.Divide(p.from, names, criuimage.LargestArea(), func(staged *criuimage.Memory) error {
		defer staged.Close()
		divided, err := p.difference(staged)
		if divided {
			done[staged.Name], done[staged.PagesName] = true, true
		}
		return err
	})
}

// difference puts memory into the partial directory as a difference, if that pays.
func (p *publication) difference(staged *criuimage.Memory) (divided bool, err error) {
	at := slices.IndexFunc(p.bases, func(c Checkpoint) bool { return c.file(staged.Name).Name != "" })
	if at < 0 {
		return false, nil
	}
	base, err := openMemoryBase(p.bases[at], staged.Name)
	var difference pagemap.Difference
	if err == nil {
		defer base.close()
		difference, err = p.compare(staged, base)
	}
	switch {
	case errors.Is(err, pagemap.ErrDiffers):
		return false, nil
	case errors.As(err, new(*DamageError)):
		p.warn(err.Error())
		return false, nil
	case err != nil:
		return false, err
	}
	if linked, err := p.parent(staged, base); err != nil || !linked {
		return false, err
	}
	err = p.put(staged.PagesName, nil, func(to io.Writer) error { return difference.WriteChanged(p.ctx, to) })
	if err == nil {
		err = p.pagemap(staged.Name, difference.Map)
	}
	return true, err
}

// compare compares staged memory with a base. It fails with [pagemap.ErrDiffers] if too little is
// the same, and with a [DamageError] if the base is not what was written.
func (p *publication) compare(staged *criuimage.Memory, base *memoryBase) (pagemap.Difference, error) {
	if base.Validate() != nil {
		return pagemap.Difference{}, pagemap.ErrDiffers
	}
	difference, err := pagemap.Compare(p.ctx, staged.Dump, base.Dump, staged.Own, staged.Bytes/2)
	same := difference.Map.ParentBytes()
	switch sum := base.pagesRecord.CRC32C; {
	case errors.Is(err, pagemap.ErrUnreadable):
		return difference, &DamageError{Checkpoint: base.checkpoint, File: base.pagesRecord.Name, Err: err}
	case err != nil:
		return difference, err
	case same < criuimage.MinDivided || 2*same < base.Bytes:
		return difference, pagemap.ErrDiffers
	case difference.Checksum != sum:
		err := errors.New("checksum mismatch")
		return difference, &DamageError{Checkpoint: base.checkpoint, File: base.pagesRecord.Name, Err: err}
	}
	return difference, nil
}

// parent links a base into the parent of the partial directory. It reports false where the file
// system has no links, or if somebody has just removed the checkpoint.
func (p *publication) parent(staged *criuimage.Memory, base *memoryBase) (bool, error) {
	if err := p.store.step(p.ctx, stepLink); err != nil {
		return false, err
	}
	if err := p.to.Mkdir(parentDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	name := parentDir + "/" + staged.Name
	linked, err := p.linkBase(base.File, parentDir+"/"+staged.PagesName, base.pagesRecord)
	if err != nil || !linked {
		_ = p.to.Remove(parentDir) // unless it holds others
		return false, err
	}
	if base.Map.PagesID == staged.Map.PagesID {
		if linked, err = p.linkBase(base.pagemap, name, base.pagemapRecord); err != nil || linked {
			return true, err
		}
	}
	// The numbers are those of this dump. In parent there may be memory of several.
	m := base.Map
	m.PagesID = staged.Map.PagesID
	return true, p.pagemap(name, m)
}

// linkBase gives a file of an earlier checkpoint a name in the partial directory.
func (p *publication) linkBase(f *os.File, name string, record File) (bool, error) {
	linked, err := p.link(f, name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil || !linked {
		return false, err
	}
	p.add(File{Name: name, Bytes: record.Bytes, CRC32C: record.CRC32C}, 0)
	return true, p.store.step(p.ctx, stepFile)
}

func (p *publication) pagemap(name string, m pagemap.Map) error {
	return p.put(name, nil, func(to io.Writer) error {
		_, err := m.WriteTo(to)
		return err
	})
}

// file returns what a checkpoint has recorded of a file; a zero File if it has none of that name.
func (c Checkpoint) file(name string) File {
	i := slices.IndexFunc(c.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return File{}
	}
	return c.Files[i]
}

// memoryBase is the memory of a process in an earlier checkpoint.
type memoryBase struct {
	*criuimage.Memory
	checkpoint    string
	pagemap       *os.File
	pagemapRecord File
	pagesRecord   File
}

func (b *memoryBase) close() { _ = errors.Join(b.Close(), b.pagemap.Close()) }

// openMemoryBase opens the memory that a checkpoint has for a pagemap: in its parent, if it is a
// difference there. It fails with a [DamageError].
func openMemoryBase(c Checkpoint, name string) (*memoryBase, error) {
	if c.file(parentDir+"/"+name).Name != "" {
		name = parentDir + "/" + name
	}
	b := &memoryBase{checkpoint: c.Name, pagemapRecord: c.file(name)}
	root, err := os.OpenRoot(c.Dir)
	if err == nil {
		defer root.Close()
		b.pagemap, _, err = criuimage.OpenIn(root, name)
	}
	if err == nil {
		sum := crc32.New(durable.Castagnoli)
		var n int64
		n, err = io.Copy(sum, io.LimitReader(b.pagemap, b.pagemapRecord.Bytes+1))
		if err == nil && (n != b.pagemapRecord.Bytes || sum.Sum32() != b.pagemapRecord.CRC32C) {
			err = fmt.Errorf("%s does not match what was written", name)
		}
	}
	if err == nil {
		b.Memory, err = criuimage.OpenMemory(root, name)
	}
	if err == nil {
		b.pagesRecord = c.file(b.PagesName)
		if b.Bytes != b.pagesRecord.Bytes {
			err = fmt.Errorf("%s: it has %d bytes, but %d were written", b.PagesName, b.Bytes, b.pagesRecord.Bytes)
		}
	}
	if err == nil {
		return b, nil
	}
	if b.Memory != nil {
		b.Close()
	}
	if b.pagemap != nil {
		b.pagemap.Close()
	}
	return nil, &DamageError{Checkpoint: c.Name, Err: err}
}
