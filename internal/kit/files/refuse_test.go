package files

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestWhatIsNotTheJobsFileAnyMoreIsNotWrittenTo: root must not be led to another file by
// whoever can change the job's directories.
func TestWhatIsNotTheJobsFileAnyMoreIsNotWrittenTo(t *testing.T) {
	const user = 12
	for title, tt := range map[string]struct {
		change func(t *testing.T, dir, secret string)
		says   string
	}{
		"a symbolic link": {
			func(t *testing.T, dir, secret string) {
				must(t, errors.Join(os.Remove(dir+"/below/state"), os.Symlink(secret, dir+"/below/state")))
			}, "DIR/below/state: it is a symbolic link now, but was a regular file at the checkpoint",
		},
		"a symbolic link on the way": {
			func(t *testing.T, dir, secret string) {
				must(t, errors.Join(os.Rename(dir+"/below", dir+"/moved"), os.Symlink("moved", dir+"/below")))
			}, "DIR/below/state: its directory DIR/below is not the one of the checkpoint: a part of this path is no longer a directory, or is a symbolic link",
		},
		"a directory that is missing": {
			func(t *testing.T, dir, secret string) { must(t, os.RemoveAll(dir+"/below")) },
			"DIR/below/state: its directory DIR/below is missing",
		},
		"a directory": {
			func(t *testing.T, dir, secret string) {
				must(t, errors.Join(os.Remove(dir+"/below/state"), os.Mkdir(dir+"/below/state", 0o755)))
			}, "DIR/below/state: it is a directory now, but was a regular file at the checkpoint",
		},
		"a named pipe": {
			func(t *testing.T, dir, secret string) {
				must(t, errors.Join(os.Remove(dir+"/below/state"), unix.Mkfifo(dir+"/below/state", 0o644)))
			}, "DIR/below/state: it is a named pipe now, but was a regular file at the checkpoint",
		},
		"another name of root's file": {
			func(t *testing.T, dir, secret string) {
				must(t, errors.Join(os.Remove(dir+"/below/state"), os.Link(secret, dir+"/below/state")))
			}, "DIR/below/state: it belongs to user 0 now, but belonged to user 12 at the checkpoint",
		},
		"another name of the user's file": {
			func(t *testing.T, dir, secret string) {
				must(t, errors.Join(os.Remove(dir+"/below/state"), os.Chown(secret, user, user), os.Link(secret, dir+"/below/state")))
			}, "DIR/below/state: it is not the file of the checkpoint, and has 2 names, not 1",
		},
	} {
		t.Run(title, func(t *testing.T) {
			top := tempDir(t)
			dir, secret := filepath.Join(top, "dir"), write(t, filepath.Join(top, "secret"), "secret")
			must(t, os.MkdirAll(filepath.Join(dir, "below"), 0o755))
			state, log := write(t, dir+"/below/state", "state 1"), write(t, dir+"/log", "line 1\n")
			must(t, os.Chown(state, user, user))
			root := startJob(t, jobFile(state, unix.O_RDWR), jobFile(log, unix.O_WRONLY|unix.O_APPEND))
			checkpoint := save(t, root, Options{})
			write(t, state, "state 2")
			write(t, log, "line 1\nline 2\n")
			tt.change(t, dir, secret)
			_, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
			checkRefused(t, dir, tt.says, err)
			checkRefused(t, dir, tt.says, Check(t.Context(), checkpoint))
			if read(t, secret) != "secret" || read(t, log) != "line 1\nline 2\n" {
				t.Errorf("something was changed: %q, %q", read(t, secret), read(t, log))
			}
			if kept, _ := filepath.Glob(dir + "/*.cucriu-*"); len(kept) > 0 {
				t.Errorf("something was kept: %v", kept)
			}
		})
	}
}

func jobFile(path string, flags int) order { return order{Path: name(path), Flags: flags} }

func checkRefused(t *testing.T, dir, says string, err error) {
	t.Helper()
	checkRefusal(t, dir, says+remedyPutBack, err)
}

func checkRefusal(t *testing.T, dir, says string, err error) {
	t.Helper()
	var refused *RefusedError
	want := "the job's files cannot be put back, and nothing was changed: " + says
	if !errors.As(err, &refused) {
		t.Fatalf("%v is no RefusedError", err)
	}
	if diff := cmp.Diff(want, strings.ReplaceAll(err.Error(), dir, "DIR")); diff != "" {
		t.Error(diff)
	}
}

// TestWhatTheCheckpointDoesNotHoldMustBeThere: criu refuses files of another size or mode.
func TestWhatTheCheckpointDoesNotHoldMustBeThere(t *testing.T) {
	for title, tt := range map[string]struct {
		order  order
		change func(path string) error
		says   string // "" if the job can go on
		notes  string
	}{
		"read, larger":      {order{}, func(path string) error { return os.Truncate(path, 9) }, "PATH, which the job has open for reading, had 7 bytes at the checkpoint, but has 9 now", ""},
		"read, missing":     {order{}, os.Remove, "PATH, which the job has open for reading, is missing", ""},
		"read, other mode":  {order{}, func(path string) error { return os.Chmod(path, 0o600) }, "PATH, which the job has open for reading, had mode 0644 at the checkpoint, but has 0600 now", ""},
		"read, a directory": {order{}, func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }, "PATH, which the job has open for reading, is a directory now", ""},
		"mapped, smaller": {
			order{Map: unix.PROT_READ, Close: true},
			func(path string) error { return os.Truncate(path, 1) },
			"PATH, a program or a library of the job, had 7 bytes at the checkpoint, but has 1 now", "",
		},
		"read, by a link on the way": {
			order{}, func(path string) error {
				return errors.Join(os.Rename(filepath.Dir(path), filepath.Dir(path)+"-moved"), os.Symlink(filepath.Base(filepath.Dir(path))+"-moved", filepath.Dir(path)))
			}, "", "",
		},
		"appended and read back, missing": {order{Flags: unix.O_RDWR | unix.O_APPEND}, os.Remove, "PATH, to which the job only appends, is missing: its content is not in the checkpoint", ""},
		"appended and read back, shorter": {
			order{Flags: unix.O_RDWR | unix.O_APPEND},
			func(path string) error { return os.Truncate(path, 3) },
			"PATH: the job only appends to it; it had 7 bytes at the checkpoint, but has 3 now: the rest is not in the checkpoint", "",
		},
		"appended, missing": {
			order{Flags: unix.O_WRONLY | unix.O_APPEND},
			os.Remove, "",
			"PATH was missing: it was recreated empty, because a file to which the job only appends is not in the checkpoint",
		},
		"appended, shorter": {
			order{Flags: unix.O_WRONLY | unix.O_APPEND},
			func(path string) error { return os.Truncate(path, 3) }, "",
			"PATH, to which the job only appends, is not the file of the checkpoint (7 B then, 3 B now): the job continues at its end",
		},
		"appended, rotated": {
			order{Flags: unix.O_WRONLY | unix.O_APPEND},
			func(path string) error { return os.WriteFile(path, []byte("another log"), 0o600) }, "",
			"PATH, to which the job only appends, is not the file of the checkpoint (7 B then, 11 B now): the job continues at its end",
		},
		"appended and read back, rotated": {
			order{Flags: unix.O_RDWR | unix.O_APPEND},
			func(path string) error { return os.WriteFile(path, []byte("another log"), 0o600) },
			"PATH: the job only appends to it; its content differs from that at the checkpoint, which does not include it", "",
		},
		"appended, other mode": {order{Flags: unix.O_WRONLY | unix.O_APPEND}, func(path string) error { return os.Chmod(path, 0o600) }, "", ""},
	} {
		t.Run(title, func(t *testing.T) {
			dir := filepath.Join(tempDir(t), "dir")
			must(t, os.Mkdir(dir, 0o755))
			path := write(t, filepath.Join(dir, "file"), "7 bytes")
			tt.order.Path = name(path)
			checkpoint := save(t, startJob(t, tt.order), Options{})
			must(t, tt.change(path))
			changes, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
			if tt.says != "" {
				checkRefused(t, path, strings.ReplaceAll(tt.says, "PATH", "DIR"), err)
				return
			}
			must(t, err)
			if tt.notes == "" && len(changes) > 0 || tt.notes != "" && (len(changes) != 1 || strings.ReplaceAll(changes[0].String(), path, "PATH") != tt.notes) {
				t.Errorf("%v, want %s", changes, tt.notes)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

func TestAFullDiskIsFoundBeforeAnythingIsChanged(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		disk := filepath.Join(tempDir(t), "disk")
		testenv.SmallDisk(t, disk, "8m")
		state := write(t, filepath.Join(disk, "state"), strings.Repeat("a", 5<<20))
		root := startJob(t, jobFile(state, unix.O_RDWR))
		if err := Save(t.Context(), stopped(t, root), disk, Options{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the job's files need 5.0 MiB in "+disk) {
			t.Errorf("saved into a full disk: %v", err)
		}
		if names := namesIn(t, disk); len(names) != 1 {
			t.Errorf("%d files", len(names))
		}
		checkpoint := save(t, root, Options{})
		newer := strings.Repeat("b", 5<<20)
		write(t, state, newer)
		_, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
		for name, err := range map[string]error{"PutBack": err, "Check": Check(t.Context(), checkpoint)} {
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if names := namesIn(t, disk); len(names) != 1 || names["state"] != newer {
			t.Errorf("%d files", len(names))
		}
		must(t, unix.Mount("", disk, "", unix.MS_REMOUNT, "size=16m"))
		_, err = PutBack(t.Context(), checkpoint, PutBackOptions{Time: noon()})
		must(t, err)
		if names := namesIn(t, disk); names["state"] != strings.Repeat("a", 5<<20) || names["state"+ofNoon] != newer {
			t.Error("it was not put back when there was room")
		}
	})
}

// TestADiskThatFillsUpMeanwhileLosesNothing: somebody else has taken the room after it was
// looked at.
func TestADiskThatFillsUpMeanwhileLosesNothing(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		disk := filepath.Join(tempDir(t), "disk")
		old, newer := strings.Repeat("a", 5<<20), strings.Repeat("b", 5<<20)
		for _, at := range []string{"partial", "kept", "emptied", "sized"} {
			testenv.SmallDisk(t, disk, "16m")
			state, ballast := write(t, filepath.Join(disk, "state"), old), filepath.Join(disk, "ballast")
			checkpoint := save(t, startJob(t, jobFile(state, unix.O_RDWR)), Options{})
			write(t, state, newer)
			_, err := putBackInSteps(t.Context(), checkpoint, PutBackOptions{Time: noon()}, func(step string) error {
				if step != at {
					return nil
				}
				if err := os.WriteFile(ballast, make([]byte, 16<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
					t.Errorf("the disk is not full: %v", err)
				}
				return nil
			})
			switch {
			case at == "kept": // the room of the old content is enough for the new
				must(t, err)
			case !errors.Is(err, unix.ENOSPC):
				t.Errorf("%s: %v", at, err)
			case at != "partial" && !strings.HasSuffix(err.Error(), "the newer content is in "+state+ofNoon):
				t.Errorf("%s: %v", at, err)
			}
			must(t, os.Remove(ballast))
			_, err = PutBack(t.Context(), checkpoint, PutBackOptions{Time: noon()})
			must(t, err)
			if names := namesIn(t, disk); names["state"] != old || names["state"+ofNoon] != newer {
				t.Errorf("%s: %d names", at, len(names))
			}
			must(t, unix.Unmount(disk, unix.MNT_DETACH))
		}
	})
}
