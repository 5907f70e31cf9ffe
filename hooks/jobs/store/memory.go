package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/images"
	"cucriu/criuutil/pagemap"
)

// The memory of a job's processes is a small number of large files of criu's, most pages of which
// are those of the checkpoint before. A checkpoint may hold the pages that differ only. The others
// are in its directory "parent", where criu looks for them: it has links to the files of an earlier
// checkpoint, which holds all pages. So a checkpoint still has all that it needs, and all of it
// can be removed. There are no chains: what is in parent is never a difference itself.
//
// What differs grows, as the earlier checkpoint gets older. At a half, all is stored again, and is
// what later checkpoints are compared with.

const parentDir = images.ParentName

const (
	// minSame is how many bytes a process must have in common with an earlier checkpoint: below
	// it, two more files do not pay.
	minSame = 1 << 20
	// maxPagemapBytes bounds the pagemaps that are compared, and with them the memory for it.
	maxPagemapBytes = 16 << 20
)

var pagemapName = regexp.MustCompile(`^pagemap-(shmem-)?([0-9]{1,10})\.img$`)

// memory puts those images of memory into the partial directory that are stored as a difference,
// and returns the names of the staged files that they stand for.
func (d *drainer) memory(names []string) (put map[string]bool, err error) {
	put = make(map[string]bool)
	if slices.ContainsFunc(names, func(name string) bool { return name == parentDir || strings.HasPrefix(name, parentDir+"/") }) {
		return put, nil
	}
	// The hosts of a job are set up alike.
	if d.largest = largestArea(); d.largest == 0 {
		return put, nil
	}
	bases, err := d.store.memoryBases()
	if err != nil || len(bases) == 0 {
		return put, err
	}
	owners := d.pagesOwners(names)
	for _, name := range names {
		match := pagemapName.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		pid := 0
		if match[1] == "" {
			pid, _ = strconv.Atoi(match[2])
		}
		pages, err := d.difference(name, pid, bases, owners)
		if err != nil {
			return put, fmt.Errorf("%s: %w", name, err)
		}
		if pages != "" {
			put[name], put[pages] = true, true
		}
	}
	return put, nil
}

// largestArea returns how large an area may be that criu maps writable although nobody may write
// it: see [images.Areas]. The kernel refuses what is larger than its memory, or refuses nothing, or
// never promises more than it has: see proc(5), /proc/sys/vm/overcommit_memory.
func largestArea() uint64 {
	mode, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	if err != nil {
		return 0
	}
	switch strings.TrimSpace(string(mode)) {
	case "1":
		return math.MaxUint64
	case "0":
		var host unix.Sysinfo_t
		if unix.Sysinfo(&host) != nil {
			return 0
		}
		return host.Totalram * uint64(host.Unit) / 2
	}
	return 0
}

// pagesOwners counts how many pagemaps name a file of pages.
func (d *drainer) pagesOwners(names []string) map[string]int {
	owners := make(map[string]int)
	for _, name := range names {
		if pagemapName.MatchString(name) {
			if m, err := readPagemap(d.from, name); err == nil {
				owners[m.PagesName()]++
			}
		}
	}
	return owners
}

func hasFile(c Checkpoint, name string) bool {
	return slices.ContainsFunc(c.Files, func(f File) bool { return f.Name == name })
}

// difference puts the memory of a pagemap into the partial directory as a difference, if that
// pays, and returns the name of the staged file of pages then.
func (d *drainer) difference(name string, pid int, bases []Checkpoint, owners map[string]int) (pages string, err error) {
	at := slices.IndexFunc(bases, func(c Checkpoint) bool { return hasFile(c, name) })
	if at < 0 {
		return "", nil
	}
	staged, err := openMemory(d.from, "", name)
	if err != nil {
		return "", nil // criu knows what it has written
	}
	defer staged.pages.Close()
	if owners[staged.Map.PagesName()] != 1 || staged.Bytes < minSame || staged.Validate() != nil {
		return "", nil
	}
	var areas images.Areas
	if pid > 0 {
		if areas, err = images.ReadAreas(d.from.Name(), pid); err != nil || areas.LargestReadOnly > d.largest {
			return "", nil
		}
	}
	base, err := openMemoryBase(bases[at], name)
	if err != nil {
		d.warn((&DamageError{Checkpoint: bases[at].Name, Err: err}).Error())
		return "", nil
	}
	defer base.close()
	difference, err := d.compare(name, staged, base, areas.Own)
	var damage *DamageError
	switch {
	case errors.Is(err, pagemap.ErrDiffers):
		return "", nil
	case errors.As(err, &damage):
		d.warn(err.Error())
		return "", nil
	case err != nil:
		return "", err
	}
	linked, err := d.parent(name, staged, base)
	if err != nil || !linked {
		d.done -= staged.Bytes // it will be copied
		return "", err
	}
	if err := d.changed(name, difference); err != nil {
		return "", err
	}
	info, err := d.from.Lstat(name)
	if err == nil {
		d.report(name, info.Size())
	}
	return staged.Map.PagesName(), err
}

// compare compares staged memory with a base. It fails with [pagemap.ErrDiffers] if too little is
// the same, and with a [DamageError] if the base is not what was written.
func (d *drainer) compare(name string, staged memoryImage, base *memoryBase, own []pagemap.Range) (_ pagemap.Difference, err error) {
	if base.Validate() != nil {
		return pagemap.Difference{}, pagemap.ErrDiffers
	}
	done := d.done
	defer func() {
		if err != nil {
			d.done = done // all of it will be copied
		}
	}()
	difference, err := pagemap.Compare(staged.Dump, base.Dump, own, staged.Bytes/2, func(n int) error {
		d.report(name, min(int64(n), done+staged.Bytes-d.done))
		return d.store.pay(d.ctx, n)
	})
	same := difference.Map.ParentBytes()
	switch sum := base.pagesRecord.CRC32C; {
	case errors.Is(err, pagemap.ErrUnreadable):
		return difference, &DamageError{Checkpoint: base.checkpoint, File: base.pagesRecord.Name, Err: err}
	case err != nil:
		return difference, err
	case same < minSame || 2*same < base.Bytes:
		return difference, pagemap.ErrDiffers
	case difference.Checksum != sum:
		err := fmt.Errorf("its CRC-32C is %08x, and %08x was written", difference.Checksum, sum)
		return difference, &DamageError{Checkpoint: base.checkpoint, File: base.pagesRecord.Name, Err: err}
	}
	d.report(name, done+staged.Bytes-d.done)
	return difference, nil
}

// parent links a base into the parent of the partial directory. It reports false where the file
// system has no links.
func (d *drainer) parent(name string, staged memoryImage, base *memoryBase) (bool, error) {
	if err := d.to.Mkdir(parentDir, 0o700); err == nil {
		d.dirs = append(d.dirs, parentDir)
	} else if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	pages := parentDir + "/" + staged.Map.PagesName()
	linked, err := d.linkBase(base.pages, pages)
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
		if linked, err = d.linkBase(base.pagemap, parentDir+"/"+name); err != nil {
			return false, err
		}
		if linked {
			d.add(File{Name: parentDir + "/" + name, Bytes: base.pagemapRecord.Bytes, CRC32C: base.pagemapRecord.CRC32C}, 0)
			return true, d.store.step(d.ctx, stepFile)
		}
	}
	// The numbers are those of this dump. In parent there may be memory of several.
	m := base.Map
	m.PagesID = staged.Map.PagesID
	return true, d.pagemap(parentDir+"/"+name, m)
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
