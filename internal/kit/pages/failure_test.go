package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// at calls what is set when a count reaches a number, and counts on.
type at struct {
	n     int64
	do    func() error
	count atomic.Int64
}

func (a *at) call() error {
	if a.count.Add(1) == a.n {
		return a.do()
	}
	return nil
}

type countedSink struct {
	*Writer
	*at
}

func (s countedSink) Put(worker int, chunk Chunk) error {
	if err := s.call(); err != nil {
		return err
	}
	return s.Writer.Put(worker, chunk)
}

type countedSource struct {
	*Reader
	*at
}

func (s countedSource) Get(i int, buffer []byte) (Chunk, error) {
	if err := s.call(); err != nil {
		return Chunk{}, err
	}
	return s.Reader.Get(i, buffer)
}

// Of the many pieces that there are to copy, at most one more for each worker is
// begun after an error or the end of the context, and that is what is returned.
func TestCopyAndFillEndInTheMiddle(t *testing.T) {
	const workers, pieces, middle = 3, 200, 20
	a := newArena(t, pieces*2*pageSize)
	var ranges []proc.Range
	for i := range pieces {
		ranges = append(ranges, a.part(2*i*pageSize, (2*i+1)*pageSize))
	}
	copy(a.memory, noise)
	want := bytes.Clone(a.memory)
	cause := errors.New("the cause")
	for name, end := range map[string]func(cancel context.CancelCauseFunc) error{
		"failed":    func(context.CancelCauseFunc) error { return cause },
		"cancelled": func(cancel context.CancelCauseFunc) error { cancel(cause); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			// ending runs something with a context and a counter that ends it.
			ending := func(run func(ctx context.Context, end *at) error) {
				t.Helper()
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				counter := &at{n: middle, do: func() error { return end(cancel) }}
				if err := run(ctx, counter); !errors.Is(err, cause) {
					t.Errorf("ended with %v", err)
				}
				if begun := counter.count.Load(); begun < middle || begun >= middle+workers {
					t.Errorf("%d pieces were begun", begun)
				}
			}
			w, err := Create(dir, testID, testPID, workers)
			must(t, err)
			ending(func(ctx context.Context, end *at) error {
				return Copy(ctx, a.Process, ranges, countedSink{w, end}, Raw)
			})
			if !bytes.Equal(a.memory, want) {
				t.Error("the memory was changed")
			}
			must(t, errors.Join(w.Remove(), w.Close()))
			wantEmpty(t, dir)

			r := copied(t, dir, a, ranges, workers)
			ending(func(ctx context.Context, end *at) error {
				return Fill(ctx, countedSource{r, end}, a.Process, workers)
			})
			// It can be begun again.
			a.set(0)
			must(t, Fill(t.Context(), r, a.Process, 0))
			for _, piece := range ranges {
				copy(want[piece.End-a.start():][:pageSize], a.memory[piece.End-a.start():]) // was not copied
			}
			if !bytes.Equal(a.memory, want) {
				t.Error("the memory is not as it was")
			}
		})
	}
}

func copied(t *testing.T, dir string, a *arena, ranges []proc.Range, shards int) *Reader {
	t.Helper()
	w, err := Create(dir, testID, testPID, shards)
	must(t, err)
	must(t, Copy(t.Context(), a.Process, ranges, w, Raw))
	listing, err := w.Finish()
	must(t, err)
	r, err := newReader(w.Files(), testPID, &listing)
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func TestNothingIsBegunAfterTheEndOfTheContext(t *testing.T) {
	a := newArena(t, 4*pageSize)
	a.set(1)
	r := copied(t, t.TempDir(), a, []proc.Range{a.part(0, len(a.memory))}, 1)
	a.set(2)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the cause")
	cancel(cause)
	if err := Fill(ctx, r, a.Process, 1); !errors.Is(err, cause) || a.memory[0] != 2 {
		t.Errorf("fill: %v, memory %d", err, a.memory[0])
	}
	w, err := Create(t.TempDir(), testID, testPID, 1)
	must(t, err)
	defer w.Close()
	if err := Copy(ctx, a.Process, []proc.Range{a.part(0, len(a.memory))}, w, Raw); !errors.Is(err, cause) || w.shards[0].end != 0 {
		t.Errorf("copy: %v, %d bytes written", err, w.shards[0].end)
	}
}

// TestAFastWorkerTakesTheRoomOfTheOthers, where a tmpfs has just room for the memory, and each worker's share of it was
// reserved.
func TestAFastWorkerTakesTheRoomOfTheOthers(t *testing.T) {
	const chunks = 8
	a := newArena(t, (chunks+1)*ChunkSize)
	copy(a.memory, bytes.Repeat(noise, 3))
	at := (a.start() + ChunkSize - 1) / ChunkSize * ChunkSize
	all := proc.Range{Start: at, End: at + chunks*ChunkSize}
	dir := t.TempDir()
	room := fmt.Sprintf("size=%d", chunks*ChunkSize+3*headerSize+pageSize) // the index, too
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, room))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	w, err := Create(dir, testID, testPID, 2)
	must(t, err)
	defer w.Close()
	w.Reserve(chunks * ChunkSize)
	put := func(worker, i int) error {
		r := proc.Range{Start: at + uint64(i)*ChunkSize, End: at + uint64(i+1)*ChunkSize}
		return w.Put(worker, Chunk{Address: r.Start, Size: ChunkSize, Checksum: checksum(a.of(r)), Codec: Raw, Data: a.of(r)})
	}
	must(t, put(1, 0))
	var group errgroup.Group
	group.Go(func() error { return put(1, 1) })
	group.Go(func() error {
		for i := 2; i < chunks; i++ {
			if err := put(0, i); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, group.Wait())
	listing, err := w.Finish()
	must(t, err)
	r, err := Open(dir, testPID, &listing)
	must(t, err)
	defer r.Close()
	want := bytes.Clone(a.of(all))
	clear(a.of(all))
	must(t, Fill(t.Context(), r, a.Process, 2))
	if !bytes.Equal(a.of(all), want) {
		t.Error("the memory is not as it was")
	}
}

func TestMemoryThatIsNotThereIsNotCopied(t *testing.T) {
	page := os.Getpagesize()
	a := newArena(t, 3*page)
	must(t, unix.Mprotect(a.memory[page:2*page], unix.PROT_NONE))
	w, err := Create(t.TempDir(), testID, testPID, 2)
	must(t, err)
	defer w.Close()
	if err := Copy(t.Context(), a.Process, []proc.Range{a.part(0, len(a.memory))}, w, Raw); !errors.Is(err, unix.EFAULT) {
		t.Errorf("copy: %v", err)
	}
}

// tinyDisk mounts a file system of some size on an empty directory, visible to the calling
// goroutine only. The mount ends with its thread, however the test ends.
func tinyDisk(t *testing.T, bytes int) string {
	t.Helper()
	runtime.LockOSThread() // never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatalf("a file system of its own needs root: %v", err)
	}
	must(t, unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// At whichever point the disk fills up, that is the error, the memory is unchanged, and no
// file is left.
func TestAFullDiskIsAnError(t *testing.T) {
	const shards = 2
	a := newArena(t, 5*ChunkSize/2)
	copy(a.memory, noise)
	all := []proc.Range{a.part(0, len(a.memory))}
	want := bytes.Clone(a.memory)
	for name, size := range map[string]int{
		"at the header": pageSize,
		"in the middle": ChunkSize + 5*pageSize,
		"at the index":  shards*headerSize + len(a.memory),
		"with room":     shards*headerSize + len(a.memory) + headerSize + pageSize,
	} {
		t.Run(name, func(t *testing.T) {
			dir := tinyDisk(t, size)
			w, err := Create(dir, testID, testPID, shards)
			must(t, err)
			copyErr := Copy(t.Context(), a.Process, all, w, Raw)
			err = copyErr
			if err == nil {
				_, err = w.Finish()
				err = errors.Join(err, w.Sync(func() {}))
			}
			switch name {
			case "with room":
				must(t, err)
			default:
				if name == "at the index" && os.Getpagesize() == headerSize { // larger pages are less full
					must(t, copyErr)
				}
				if !errors.Is(err, unix.ENOSPC) {
					t.Errorf("error %v", err)
				}
				wantError(t, err, dir)
			}
			if !bytes.Equal(a.memory, want) {
				t.Error("the memory was changed")
			}
			must(t, errors.Join(w.Remove(), w.Close()))
			wantEmpty(t, dir)
		})
	}
}

// Files that exist already are not touched, and files that were created before they were
// found are removed.
func TestCreateTakesNoFileThatExists(t *testing.T) {
	for _, there := range NewListing(testID, 2).Names(testPID) {
		dir := t.TempDir()
		path := filepath.Join(dir, there)
		must(t, os.WriteFile(path, []byte("kept"), 0o600))
		before := descriptors(t)
		w, err := Create(dir, testID, testPID, 2)
		if !errors.Is(err, os.ErrExist) || w != nil {
			t.Errorf("create: %v", err)
		}
		wantError(t, err, there)
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors are open, and %d were", after, before)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "kept" {
			t.Errorf("the file that was there: %q, %v", data, err)
		}
		must(t, os.Remove(path))
		wantEmpty(t, dir)
	}
}

func TestRemoveOfWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, testID, testPID, 2)
	must(t, err)
	defer w.Close()
	must(t, os.Remove(w.Files()[1].Name()))
	must(t, w.Remove())
	must(t, w.Remove())
	wantEmpty(t, dir)
}
