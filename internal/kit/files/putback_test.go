package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

const ofNoon = ".cucriu-20261122-120000"

// namesIn lists a directory with the content of its files.
func namesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	names := make(map[string]string)
	for _, entry := range entries {
		names[entry.Name()] = read(t, filepath.Join(dir, entry.Name()))
	}
	return names
}

func TestFilesArePutBackAndWhatIsNewerIsKept(t *testing.T) {
	dir := tempDir(t)
	at := func(base string) string { return filepath.Join(dir, base) }
	state, log, same, gone := write(t, at("state"), "state 1"), write(t, at("log"), "line 1\n"), write(t, at("same"), "same"), write(t, at("gone"), "gone")
	must(t, os.Chmod(state, 0o4751))
	must(t, os.Chown(state, 12, 34))
	must(t, os.Chmod(state, 0o4751))
	var before unix.Stat_t
	must(t, unix.Stat(state, &before))
	root := startJob(
		t, order{Path: name(state), Flags: unix.O_RDWR}, order{Path: name(log), Flags: unix.O_WRONLY | unix.O_APPEND},
		order{Path: name(same), Flags: unix.O_RDWR}, order{Path: name(gone), Flags: unix.O_RDWR},
	)
	checkpoint := save(t, root, Options{})
	write(t, state, "state number 2")
	must(t, os.Chmod(state, 0o600))
	write(t, log, "line 1\nline 2\n")
	must(t, os.Remove(gone))
	must(t, Check(t.Context(), checkpoint))

	changes, err := PutBack(t.Context(), checkpoint, PutBackOptions{Time: noon()})
	must(t, err)
	var said []string
	for _, change := range changes {
		said = append(said, strings.ReplaceAll(change.String(), dir+"/", ""))
	}
	if diff := cmp.Diff([]string{
		"gone was missing: it was recreated as it was at the checkpoint",
		"log had grown by 7 B since the checkpoint: the newer content is in log" + ofNoon,
		"state was restored to its content at the checkpoint: the newer version is in state" + ofNoon,
	}, said); diff != "" {
		t.Error(diff)
	}
	want := map[string]string{
		"state": "state 1", "state" + ofNoon: "state number 2", "log": "line 1\n", "log" + ofNoon: "line 2\n", "same": "same", "gone": "gone",
	}
	if diff := cmp.Diff(want, namesIn(t, dir)); diff != "" {
		t.Error(diff)
	}
	var after, kept unix.Stat_t
	must(t, unix.Stat(state, &after))
	if after.Ino != before.Ino || metadataOf(after) != metadataOf(before) {
		t.Errorf("%+v, want %+v", after, before)
	}
	must(t, unix.Stat(state+ofNoon, &kept))
	if kept.Mode&0o7777 != 0o600 || kept.Uid != 12 || kept.Gid != 34 {
		t.Errorf("the newer one: %+v", kept)
	}
	again, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
	if must(t, err); len(again) > 0 {
		t.Errorf("there was nothing to do: %v", again)
	}
	if diff := cmp.Diff(want, namesIn(t, dir)); diff != "" {
		t.Error(diff)
	}
}
