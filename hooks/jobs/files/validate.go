package files

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// validate refuses a list that Save does not write.
func (l list) validate() error {
	paths := make(map[name]bool)
	for i, f := range l.Files {
		if err := f.validate(i); err != nil {
			return err
		}
		for _, path := range f.Paths {
			if paths[path] {
				return fmt.Errorf("%v is in it twice", path)
			}
			paths[path] = true
		}
	}
	dirs := make(map[name]bool)
	for i, t := range l.Trees {
		if err := t.validate(i); err != nil {
			return fmt.Errorf("directory %v: %w", t.Dir, err)
		}
		if dirs[t.Dir] {
			return fmt.Errorf("directory %v is in it twice", t.Dir)
		}
		dirs[t.Dir] = true
	}
	return nil
}

func (f file) validate(i int) error {
	if len(f.Paths) == 0 {
		return fmt.Errorf("file %d has no path", i)
	}
	for _, path := range f.Paths {
		if err := path.checkAbsolute(); err != nil {
			return fmt.Errorf("file %d: %w", i, err)
		}
	}
	err := f.Meta.validate()
	switch f.Use {
	case useContent:
		err = errors.Join(err, f.Content.validate(f.Meta.Size, filePrefix+strconv.Itoa(i), 0))
	case useRead, useMapped, useAppend:
		if f.Content.Data != "" || f.Content.Start != 0 || len(f.Content.Extents) > 0 {
			err = errors.Join(err, errors.New("it has content"))
		}
	default:
		err = errors.Join(err, fmt.Errorf("%q is no use", f.Use))
	}
	if wanted := f.Use == useAppend; wanted != (f.End != nil) || wanted && f.End.Length != min(f.Meta.Size, endingSize) {
		err = errors.Join(err, errors.New("its end is not described as it must be"))
	}
	if err != nil {
		return fmt.Errorf("file %v: %w", f.Paths[0], err)
	}
	return nil
}

func (m metadata) validate() error {
	switch {
	case m.Size < 0:
		return fmt.Errorf("the size %d is negative", m.Size)
	case m.Mode&^0o7777 != 0:
		return fmt.Errorf("%o is no mode", m.Mode)
	case m.UID == math.MaxUint32 || m.GID == math.MaxUint32:
		return errors.New("nobody has the owner -1")
	}
	return nil
}

// validate refuses extents that are not ascending and inside the file, or whose data is not
// where it must be.
func (c content) validate(size int64, data string, start int64) error {
	if len(c.Extents) == 0 {
		data, start = "", 0
	}
	if c.Data != data || c.Start != start {
		return fmt.Errorf("its data is in %q from %d on, not in %q from %d on", c.Data, c.Start, data, start)
	}
	end := int64(0)
	for _, e := range c.Extents {
		if e.Offset < end || e.Length <= 0 || e.Length > pieceSize || e.Offset > size-e.Length {
			return fmt.Errorf("the part of %d bytes at %d does not fit into it", e.Length, e.Offset)
		}
		end = e.Offset + e.Length
	}
	return nil
}

func (t tree) validate(i int) error {
	if err := t.Dir.checkAbsolute(); err != nil {
		return err
	}
	if t.Data != treePrefix+strconv.Itoa(i) {
		return fmt.Errorf("its data is in %q", t.Data)
	}
	kinds := map[name]kind{".": kindDir}
	start := int64(0)
	for _, e := range t.Entries {
		err := e.validate(t.Data, start)
		dir, _ := e.Path.split()
		switch {
		case err != nil:
		case kinds[e.Path] != "":
			err = errors.New("it is there twice")
		case kinds[name(dir)] != kindDir: // so no path leads through a symbolic link
			err = errors.New("its directory does not come before it")
		case e.Kind == kindLink && kinds[e.Target] != kindFile && kinds[e.Target] != kindFIFO && kinds[e.Target] != kindSymlink:
			err = fmt.Errorf("it is a link to %v, which does not come before it", e.Target)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", e.Path, err)
		}
		kinds[e.Path] = e.Kind
		start += e.Content.length()
	}
	return nil
}

func (e entry) validate(data string, start int64) error {
	err := errors.Join(e.Path.checkRelative(), e.Meta.validate())
	if err != nil {
		return err
	}
	switch e.Kind {
	case kindFile:
		err = e.Content.validate(e.Meta.Size, data, start)
	case kindDir, kindSymlink, kindFIFO, kindLink:
		err = e.Content.validate(0, "", 0)
	default:
		err = fmt.Errorf("%q is no kind of file", e.Kind)
	}
	needsTarget := e.Kind == kindSymlink || e.Kind == kindLink
	if err == nil && (needsTarget != (e.Target != "") || strings.Contains(string(e.Target), "\x00")) {
		err = fmt.Errorf("%q is not what it can lead to", string(e.Target))
	}
	return err
}
