package delta

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/pagemap"
)

// compareMemory compares ordinary memory, as criu has written it.
func (d *Delta) compareMemory(ctx context.Context, earlier, current string, largest uint64) error {
	before, err := os.OpenRoot(earlier)
	if err != nil {
		return err
	}
	defer before.Close()
	now, err := os.OpenRoot(current)
	if err != nil {
		return err
	}
	defer now.Close()
	names, err := namesIn(now)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	err = criuimage.Divide(now, names, largest, func(m *criuimage.Memory) error {
		group.Go(func() error {
			defer m.Close()
			base, err := criuimage.OpenMemory(before, m.Name)
			if err != nil {
				return nil // a process that was not there, or something that criu does not write: all of it is sent
			}
			defer base.Close()
			differs, err := d.divide(ctx, m, base)
			if err != nil || differs {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			d.Replaced = append(d.Replaced, m.Name, m.PagesName)
			d.Parents = append(d.Parents, base.Name, base.PagesName)
			return nil
		})
		return nil
	})
	return errors.Join(err, group.Wait())
}

// divide writes what of memory has changed, unless that is too much.
func (d *Delta) divide(ctx context.Context, m, base *criuimage.Memory) (differs bool, err error) {
	if base.Validate() != nil {
		return true, nil
	}
	difference, err := pagemap.Compare(ctx, m.Dump, base.Dump, m.Own, m.Bytes/2)
	if errors.Is(err, pagemap.ErrDiffers) || err == nil && difference.Map.ParentBytes() < criuimage.MinDivided {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	pages := func(w io.Writer) (int64, error) { return 0, difference.WriteChanged(ctx, w) }
	return false, errors.Join(d.create(m.PagesName, pages), d.create(m.Name, difference.Map.WriteTo))
}

func (d *Delta) create(name string, write func(io.Writer) (int64, error)) error {
	f, err := os.OpenFile(filepath.Join(d.Dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = write(f)
	return errors.Join(err, f.Close())
}

func namesIn(root *os.Root) ([]string, error) {
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}
