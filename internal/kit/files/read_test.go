package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// guard makes a group of fanotify without an answer for whoever opens a file.
func guard(path string) (int, error) {
	group, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC)
	if err == nil {
		err = unix.FanotifyMark(group, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path)
	}
	return group, err
}

// TestAJobThatControlsWhoOpensFilesIsRefused before any of them is opened.
func TestAJobThatControlsWhoOpensFilesIsRefused(t *testing.T) {
	for then, says := range map[string]string{
		thenLease: "has a write lease on PATH (descriptor",
		thenGuard: "answers fanotify permission events (descriptor",
	} {
		t.Run(then, func(t *testing.T) {
			path := write(t, filepath.Join(tempDir(t), "fi\x1ble"), "content")
			root := startJob(t, order{Path: name(path), Flags: unix.O_RDWR, Then: then})
			says = strings.ReplaceAll(says, "PATH", name(path).String())
			for title, err := range map[string]error{"Foresee": Foresee(t.Context(), root, Options{}), "Save": Save(t.Context(), stopped(t, root), t.TempDir(), Options{})} {
				if guarded := new(proc.GuardedError); !errors.As(err, &guarded) || guarded.PID != root || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v, want %s", title, err, says)
				}
			}
			must(t, unix.Kill(root, 0)) // SIGIO would have ended it
		})
	}
}

// TestAFileThatTheJobCanReadIsNotOpened: others notice that, and may have to allow it.
func TestAFileThatTheJobCanReadIsNotOpened(t *testing.T) {
	path := write(t, filepath.Join(tempDir(t), "file"), "content")
	root := startJob(t, order{Path: name(path), Flags: unix.O_RDWR | unix.O_NONBLOCK}, order{Path: name(path), Flags: unix.O_WRONLY | unix.O_APPEND})
	group, err := guard(path)
	must(t, err)
	checkpoint := save(t, root, Options{Patience: time.Hour})
	if n, err := unix.Read(group, make([]byte, 4096)); err != unix.EAGAIN {
		t.Errorf("the file was opened: %d bytes of events, %v", n, err)
	}
	must(t, unix.Close(group)) // which allows what waits
	must(t, os.WriteFile(path, []byte("changed"), 0o644))
	if _, err := PutBack(t.Context(), checkpoint, PutBackOptions{}); err != nil {
		t.Fatal(err)
	}
	if now := read(t, path); now != "content" {
		t.Errorf("it has %q", now)
	}
}

// TestAFileThatNobodyAllowsToOpenIsGivenUp: the job is stopped meanwhile.
func TestAFileThatNobodyAllowsToOpenIsGivenUp(t *testing.T) {
	path := write(t, filepath.Join(tempDir(t), "file"), "content")
	root := startJob(t, order{Path: name(path), Flags: unix.O_WRONLY})
	group, err := guard(path)
	must(t, err)
	defer unix.Close(group) // which allows what waits
	err = Save(t.Context(), stopped(t, root), t.TempDir(), Options{Patience: 500 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), path+" could not be opened or read within 500ms") {
		t.Errorf("%v", err)
	}
}
