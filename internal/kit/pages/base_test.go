package pages

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/kit/proc"
)

// basedArena has whole chunks: the first of an address that is a multiple of theirs.
func basedArena(t *testing.T) (a *arena, at uint64) {
	t.Helper()
	a = newArena(t, 9*ChunkSize)
	copy(a.memory, bytes.Repeat(noise, 3))
	return a, (a.start() + ChunkSize - 1) / ChunkSize * ChunkSize
}

// stored is memory that a dump has stored.
func stored(t *testing.T, dir string, a *arena, r proc.Range, codec Codec) *Base {
	t.Helper()
	w, err := Create(dir, "fedcba9876543210", testPID+1, 2)
	must(t, err)
	must(t, Copy(t.Context(), a.Process, []proc.Range{r}, w, codec))
	listing, err := w.Finish()
	must(t, err)
	must(t, w.Close())
	base, err := OpenBase(dir, testPID+1, &listing)
	must(t, err)
	t.Cleanup(func() { base.Close() })
	return base
}

// TestWhatABaseHasIsNotStoredAgain, also if it was elsewhere then: the files are complete with those of the base, and alone once they are rewritten.
func TestWhatABaseHasIsNotStoredAgain(t *testing.T) {
	for name, codec := range map[string]Codec{"as it is": Raw, "compressed": S2} {
		t.Run(name, func(t *testing.T) {
			a, at := basedArena(t)
			copy(a.of(proc.Range{Start: at + ChunkSize, End: at + 2*ChunkSize}), make([]byte, ChunkSize)) // zeros
			then, now, changed := proc.Range{Start: at, End: at + 3*ChunkSize}, proc.Range{Start: at + 4*ChunkSize, End: at + 7*ChunkSize}, proc.Range{Start: at + 7*ChunkSize, End: at + 8*ChunkSize}
			earlier, dir, whole := t.TempDir(), t.TempDir(), t.TempDir()
			base := stored(t, earlier, a, then, codec)
			copy(a.of(now), a.of(then))

			w, err := Create(dir, testID, testPID, 2)
			must(t, err)
			w.UseBase(base)
			must(t, w.Reuse(now, then.Start))
			must(t, Copy(t.Context(), a.Process, []proc.Range{changed}, w, Raw))
			listing, err := w.Finish()
			must(t, err)
			must(t, w.Close())
			if listing.Bytes != 4*ChunkSize || len(listing.Origins) != 4 {
				t.Errorf("the listing: %+v", listing)
			}
			if _, err := Open(dir, testPID, &listing); err == nil {
				t.Error("the files are complete without those of the base")
			}
			reader, err := Open(dir, testPID, &listing, earlier)
			must(t, err)
			defer reader.Close()
			want := slices.Clone(a.memory)
			filled := func(from Source) {
				t.Helper()
				clear(a.of(proc.Range{Start: now.Start, End: changed.End}))
				must(t, Fill(t.Context(), from, a.Process, 2))
				if !bytes.Equal(a.memory, want) {
					t.Error("the memory is not as it was")
				}
			}
			filled(reader)
			clear(a.of(now))
			must(t, Fill(t.Context(), base.At(now, then.Start), a.Process, 2))
			if !bytes.Equal(a.of(now), a.of(then)) {
				t.Error("the base's memory is not as it was")
			}

			var pool Pool
			must(t, pool.Add("earlier", earlier, base.PID, base.Listing))
			defer pool.Close()
			rewritten, err := Rewrite(t.Context(), NewPlan(reader, &pool), RewriteOptions{Dir: whole, ID: "00000000000000aa", PID: testPID})
			must(t, err)
			must(t, os.RemoveAll(earlier))
			alone, err := Open(whole, testPID, &rewritten.Listing)
			must(t, err)
			defer alone.Close()
			filled(alone)
		})
	}
}

// TestABaseThatDoesNotHaveItIsRefused, and memory that was copied all the same and is not what the base has.
func TestABaseThatDoesNotHaveItIsRefused(t *testing.T) {
	a, at := basedArena(t)
	then := proc.Range{Start: at, End: at + 3*ChunkSize}
	base := stored(t, t.TempDir(), a, then, Raw)
	for name, c := range map[string]struct {
		now    proc.Range
		before uint64
	}{
		"too much":       {proc.Range{Start: at, End: at + 4*ChunkSize}, at},
		"before it":      {proc.Range{Start: at + ChunkSize, End: at + 2*ChunkSize}, at - ChunkSize},
		"half a chunk":   {proc.Range{Start: at, End: at + ChunkSize/2}, at},
		"other borders":  {proc.Range{Start: at + pageSize, End: at + ChunkSize + pageSize}, at},
		"within a chunk": {proc.Range{Start: at + pageSize, End: at + ChunkSize}, at + pageSize},
	} {
		w := &Writer{base: base}
		if err := w.Reuse(c.now, c.before); err == nil || len(w.reused) > 0 {
			t.Errorf("%s: it is reused: %v", name, err)
		}
	}

	w, err := Create(t.TempDir(), testID, testPID, 1)
	must(t, err)
	w.UseBase(base)
	must(t, w.Reuse(then, at))
	must(t, Copy(t.Context(), a.Process, []proc.Range{then}, w, Raw))
	if len(w.shards[0].records) > 0 {
		t.Error("what the base has is stored again")
	}
	a.of(then)[2*ChunkSize+5]++
	if err := Copy(t.Context(), a.Process, []proc.Range{then}, w, Raw); err == nil || !strings.Contains(err.Error(), "counts as unchanged") {
		t.Errorf("memory that has changed passes: %v", err)
	}
	must(t, w.Close())
}

// TestTheFilesOfABaseStay when those that name them are removed, wherever they lie.
func TestTheFilesOfABaseStay(t *testing.T) {
	a, at := basedArena(t)
	dir := t.TempDir()
	base := stored(t, dir, a, proc.Range{Start: at, End: at + ChunkSize}, Raw)
	listing := NewListing(testID, 1)
	must(t, listing.Extend(testPID, base))
	must(t, os.WriteFile(filepath.Join(dir, listing.Names(testPID)[0]), nil, 0o600))
	must(t, Remove(dir, testPID, listing))
	names, err := Names(dir)
	must(t, err)
	if want := base.Listing.Names(base.PID); len(names) != len(want) {
		t.Errorf("left are %q, and the base has %q", names, want)
	}
	many := NewListing(testID, maxShards-1)
	if err := many.Extend(testPID, base); err == nil || len(many.Origins) > 0 || len(many.ShardBytes) != maxShards-1 {
		t.Errorf("more shards than there can be: %v", err)
	}
}
