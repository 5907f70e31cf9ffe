package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// Directories are packed, to be the same on another host, as the trees of a checkpoint are saved; but whole: with
// themselves, the names of sockets, and extended attributes.

// Pack saves directories, in which nobody writes, into dir.
func Pack(ctx context.Context, dirs []string, dir string) error {
	return pack(ctx, dirs, func(ctx context.Context, s *survey) error { return s.save(ctx, dir) })
}

// ForeseePack refuses what Pack would refuse, and touches nothing. It returns how many bytes Pack would save.
func ForeseePack(ctx context.Context, dirs []string, dir string) (size int64, err error) {
	err = pack(ctx, dirs, func(_ context.Context, s *survey) error {
		size = bytesOf(s.transfers)
		return checkRoom(dir, size)
	})
	return size, err
}

func pack(ctx context.Context, dirs []string, do func(context.Context, *survey) error) error {
	return unstalled(ctx, Options{}.patience(), func(ctx context.Context, at *progress) error {
		s := &survey{whole: true, at: at}
		for _, dir := range dirs {
			dir, err := filepath.EvalSymlinks(dir)
			if err == nil {
				err = s.walk(ctx, dir, make(map[inode]bool))
			}
			if err != nil {
				return fmt.Errorf("%v: %w", name(dir), err)
			}
		}
		err := checkLimit("the directories", DefaultTreeLimit, s.transfers, "let the job keep less there")
		if err != nil {
			return err
		}
		return do(ctx, s)
	})
}

// Unpack makes directories, which are missing, what those were that were packed into dir. What it makes is not yet on
// disk. Whoever has packed them may be hostile: nothing is changed outside of them.
func Unpack(ctx context.Context, dir string, to []string) error {
	none := func(string) error { return nil }
	return withList(ctx, dir, PutBackOptions{}, none, func(p *putBack) error {
		if len(p.list.Trees) != len(to) || len(p.list.Files) > 0 {
			return fmt.Errorf("%d directories were packed, not %d", len(p.list.Trees), len(to))
		}
		for i := range to {
			if err := os.Mkdir(to[i], 0o700); err != nil {
				return err
			}
			p.list.Trees[i].Dir = name(to[i])
		}
		if err := p.checkTrees(); err != nil {
			return err
		}
		for _, t := range p.list.Trees {
			if err := p.fill(ctx, t); err != nil {
				return err
			}
		}
		return nil
	})
}

// readAttributes reads the extended attributes of what is at a path.
func (e *entry) readAttributes(path string) error {
	names, err := readGrowing(func(buffer []byte) (int, error) { return unix.Llistxattr(path, buffer) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	for attribute := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		if err != nil || len(attribute) == 0 {
			break
		}
		var value []byte
		value, err = readGrowing(func(buffer []byte) (int, error) {
			return unix.Lgetxattr(path, string(attribute), buffer)
		})
		if errors.Is(err, unix.ENODATA) { // removed meanwhile, or a name without a value here
			err = nil
			continue
		}
		if e.Attributes == nil {
			e.Attributes = make(map[string][]byte)
		}
		e.Attributes[string(attribute)] = value
	}
	if err != nil {
		err = fmt.Errorf("extended attributes: %w", err)
	}
	return err
}

// readGrowing reads what may grow meanwhile.
func readGrowing(read func(buffer []byte) (int, error)) ([]byte, error) {
	for {
		size, err := read(nil)
		if err != nil || size == 0 {
			return nil, err
		}
		buffer := make([]byte, size)
		if size, err = read(buffer); !errors.Is(err, unix.ERANGE) {
			return buffer[:max(size, 0)], err
		}
	}
}

// setAttributes gives an entry its extended attributes. A label of SELinux is left to this host, which may have another
// policy.
func (e *entry) setAttributes(root *os.Root) error {
	if len(e.Attributes) == 0 {
		return nil
	}
	dir, err := root.Open(filepath.Dir(string(e.Path)))
	if err != nil {
		return err
	}
	defer dir.Close()
	at := proc.PathIn(dir, filepath.Base(string(e.Path)))
	for attribute, value := range e.Attributes {
		if strings.HasPrefix(attribute, "security.selinux") {
			continue
		}
		if err := unix.Lsetxattr(at, attribute, value, 0); err != nil {
			return fmt.Errorf("extended attribute %v: %w", name(attribute), err)
		}
	}
	return nil
}
