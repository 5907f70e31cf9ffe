package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// putBackProcess puts files back in a process of its own, which kills itself at a step.
func putBackProcess(t *testing.T, checkpoint string, killAt int) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childVariable+"=putback", "DIR="+checkpoint, "KILL_AT="+strconv.Itoa(killAt), "TIME="+noon().Format(time.RFC3339), "UNDO="+undoOf(checkpoint))
	return cmd
}

// undoOf is where the record of what was done for a checkpoint is.
func undoOf(checkpoint string) string {
	if full := os.Getenv(fullDiskVariable); full != "" {
		return filepath.Join(full, "undo")
	}
	return checkpoint + ".undo"
}

// fullDiskVariable names a full disk for the records, which go into its spareVariable instead.
const fullDiskVariable, spareVariable = "FULL_DISK", "UNDO_SPARE"

// undoProcess is the same for the undo.
func undoProcess(t *testing.T, checkpoint string, killAt int) *exec.Cmd {
	t.Helper()
	cmd := putBackProcess(t, checkpoint, killAt)
	cmd.Env = append(cmd.Env, childVariable+"=undo")
	return cmd
}

func wasKilled(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// inParts is a file with data in several parts.
func inParts(t *testing.T, path string, letter byte) string {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	for i := range int64(4) {
		_, err := f.WriteAt(bytes.Repeat([]byte{letter}, 5000), i<<20)
		must(t, err)
	}
	must(t, f.Close())
	return path
}

// scene is a job whose files were saved and have changed since.
type scene struct{ dir, shm, checkpoint string }

// describe lists all that is in the scene's directories.
func (s scene) describe(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	inodes := make(map[uint64]string)
	for _, dir := range slices.Compact([]string{s.dir, s.shm}) {
		must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || path == dir {
				return err
			}
			var st unix.Stat_t
			must(t, unix.Lstat(path, &st))
			text := fmt.Sprintf("mode %o", st.Mode)
			if isRegular(st) {
				content := strings.TrimRight(read(t, path), "\x00")
				text += fmt.Sprintf(" size %d content %q", st.Size, content[:min(len(content), 20)])
			}
			if first := inodes[st.Ino]; first != "" {
				text = "is " + first
			}
			base, _ := filepath.Rel(filepath.Dir(dir), path)
			inodes[st.Ino] = base
			all[base] = text
			return nil
		}))
	}
	return all
}

func makeScene(t *testing.T) scene {
	t.Helper()
	top := tempDir(t)
	s := scene{dir: filepath.Join(top, "data"), shm: filepath.Join(top, "shm")}
	must(t, errors.Join(os.Mkdir(s.dir, 0o755), os.MkdirAll(filepath.Join(s.shm, "below"), 0o755)))
	at := func(base string) string { return filepath.Join(s.dir, base) }
	const appending = unix.O_WRONLY | unix.O_APPEND
	inParts(t, at("parts"), 'a')
	write(t, at("log"), "line 1\n")
	must(t, os.Link(at("log"), at("log 2")))
	write(t, at("missing"), "was there")
	write(t, at("missing log"), "line 1\n")
	write(t, at("name 1"), "two names")
	must(t, os.Link(at("name 1"), at("name 2")))
	write(t, at("emptied"), "was not empty")
	write(t, filepath.Join(s.shm, "below", "file"), "shared memory")
	must(t, os.Symlink("below/file", filepath.Join(s.shm, "link")))
	root := startJob(
		t, order{Path: name(at("parts")), Flags: unix.O_RDWR}, order{Path: name(at("log")), Flags: appending}, order{Path: name(at("log 2")), Flags: appending},
		order{Path: name(at("missing")), Flags: unix.O_WRONLY}, order{Path: name(at("missing log")), Flags: appending},
		order{Path: name(at("name 1")), Flags: unix.O_WRONLY}, order{Path: name(at("name 2")), Flags: unix.O_WRONLY},
		order{Path: name(at("emptied")), Flags: unix.O_WRONLY}, order{Path: name(filepath.Join(s.shm, "below/file")), Flags: unix.O_RDWR},
	)
	s.checkpoint = save(t, root, Options{Shm: s.shm})
	inParts(t, at("parts"), 'b')
	write(t, at("log"), "line 1\nline 2\n")
	must(t, errors.Join(os.Remove(at("missing")), os.Remove(at("missing log")), os.Remove(at("name 2")), os.Remove(at("log 2")), os.Truncate(at("emptied"), 0)))
	write(t, at("name 1"), "newer")
	s.newShm(t)
	return s
}

// newShm is what a new sandbox brings along.
func (s scene) newShm(t *testing.T) {
	t.Helper()
	must(t, errors.Join(os.RemoveAll(s.shm), os.Mkdir(s.shm, 0o755)))
}

func sceneAtTheEnd() map[string]string {
	const regular = "mode 100644 size "
	size := 3<<20 + 5000
	return map[string]string{
		"data/parts":            regular + fmt.Sprintf("%d content %q", size, strings.Repeat("a", 20)),
		"data/parts" + ofNoon:   regular + fmt.Sprintf("%d content %q", size, strings.Repeat("b", 20)),
		"data/log":              regular + `7 content "line 1\n"`,
		"data/log 2":            "is data/log",
		"data/log" + ofNoon:     regular + `7 content "line 2\n"`,
		"data/missing":          regular + `9 content "was there"`,
		"data/missing log":      regular + `0 content ""`,
		"data/name 1":           regular + `9 content "two names"`,
		"data/name 1" + ofNoon:  regular + `5 content "newer"`,
		"data/name 2":           "is data/name 1" + ofNoon, // set below
		"data/emptied":          regular + `13 content "was not empty"`,
		"data/emptied" + ofNoon: regular + `0 content ""`,
		"shm/below":             "mode 40755",
		"shm/below/file":        regular + `13 content "shared memory"`,
		"shm/link":              "mode 120777",
	}
}

// files describes the files that are not the job's alone, with their times.
func (s scene) files(t *testing.T) map[string]string {
	t.Helper()
	all := s.describe(t)
	for base := range all {
		if strings.HasPrefix(base, "shm/") {
			delete(all, base)
			continue
		}
		info, err := os.Lstat(filepath.Join(filepath.Dir(s.dir), base))
		must(t, err)
		all[base] += " of " + info.ModTime().String()
	}
	return all
}

// TestKilledAtAnyStepPutBackCanBeUndone, and then comes to the same result, wherever the undo is
// killed.
func TestKilledAtAnyStepPutBackCanBeUndone(t *testing.T) { undoneAfterAnyKill(t) }

func TestKilledAtAnyStepPutBackCanBeUndoneOnAFullDisk(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		full := filepath.Join(tempDir(t), "full")
		testenv.SmallDisk(t, full, "4k")
		write(t, filepath.Join(full, "ballast"), strings.Repeat("x", 4096))
		t.Setenv(fullDiskVariable, full)
		t.Setenv(spareVariable, filepath.Join(tempDir(t), "undo"))
		undoneAfterAnyKill(t)
	})
}

func undoneAfterAnyKill(t *testing.T) {
	want := sceneAtTheEnd()
	want["data/name 2"] = "is data/name 1"
	undoSteps := 0
	for killAt, last := 0, false; !last; killAt++ {
		s := makeScene(t)
		before := s.files(t)
		out, err := putBackProcess(t, s.checkpoint, killAt).CombinedOutput()
		if last = !wasKilled(err); last && err != nil {
			t.Fatalf("step %d: %v\n%s", killAt, err, out)
		}
		if last {
			if diff := cmp.Diff(want, s.describe(t)); diff != "" {
				t.Error(diff)
			}
		}
		for undoAt, undone := killAt%3, false; !undone; undoAt += 3 {
			out, err := undoProcess(t, s.checkpoint, undoAt).CombinedOutput()
			if undone = !wasKilled(err); undone && err != nil {
				t.Fatalf("after a kill at step %d, undo: %v\n%s", killAt, err, out)
			} else if !undone {
				undoSteps++
			}
		}
		if diff := cmp.Diff(before, s.files(t)); diff != "" {
			t.Errorf("after a kill at step %d it is not as before:\n%s", killAt, diff)
		}
		s.newShm(t)
		must(t, putBackProcess(t, s.checkpoint, -1).Run())
		if diff := cmp.Diff(want, s.describe(t)); diff != "" {
			t.Errorf("after a kill at step %d:\n%s", killAt, diff)
		}
		must(t, Forget(UndoFile{Path: undoOf(s.checkpoint), Spare: os.Getenv(spareVariable)}))
		if last && (killAt < 20 || undoSteps < 20) {
			t.Errorf("there were only %d steps, and %d of the undo", killAt, undoSteps)
		}
	}
}

// TestWhatWasChangedAfterPutBackIsNotUndone: it may be the job's work.
func TestWhatWasChangedAfterPutBackIsNotUndone(t *testing.T) {
	s := makeScene(t)
	must(t, putBackProcess(t, s.checkpoint, -1).Run())
	log := filepath.Join(s.dir, "log")
	write(t, log, "line 1\nanother line 2\n")
	left, err := Undo(UndoFile{Path: undoOf(s.checkpoint)})
	if must(t, err); len(left) != 2 || left[0].Kept != log+ofNoon { // and its other name
		t.Errorf("left: %q", left)
	}
	all := s.describe(t)
	if all["data/log"+ofNoon] == "" || !strings.Contains(all["data/log"], "another line") || strings.Contains(all["data/parts"], "aaaa") {
		t.Errorf("%v", all)
	}
}

// TestWhatAnotherProgramWritesMeanwhileStays after its content was kept, and in the undo.
func TestWhatAnotherProgramWritesMeanwhileStays(t *testing.T) {
	s := makeScene(t)
	undo := UndoFile{Path: undoOf(s.checkpoint)}
	before := s.files(t)
	parts := filepath.Join(s.dir, "parts")
	kept := 0
	_, err := putBackInSteps(t.Context(), s.checkpoint, PutBackOptions{Time: noon(), Undo: undo}, func(step string) error {
		if step == "kept" {
			if kept++; kept == 4 { // all that there are
				write(t, parts, strings.Repeat("c", 3<<20+5000))
			}
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), parts+" was changed just now: another program writes to it") {
		t.Errorf("%v", err)
	}
	_, err = Undo(undo)
	must(t, err)
	after := s.files(t)
	if !strings.Contains(after["data/parts"], "cccc") {
		t.Errorf("what was written meanwhile is lost: %s", after["data/parts"])
	}
	delete(before, "data/parts")
	delete(after, "data/parts")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

// TestWhatWasReplacedAfterAKillIsKept: somebody has removed or replaced the file after a kill.
func TestWhatWasReplacedAfterAKillIsKept(t *testing.T) {
	for title, change := range map[string]func(t *testing.T, path string){
		"removed":  func(t *testing.T, path string) { must(t, os.Remove(path)) },
		"replaced": func(t *testing.T, path string) { must(t, os.Rename(write(t, path+".new", "mine"), path)) },
		"longer":   func(t *testing.T, path string) { write(t, path, strings.Repeat("x", 4<<20)) },
	} {
		t.Run(title, func(t *testing.T) {
			s := makeScene(t)
			undo := UndoFile{Path: undoOf(s.checkpoint)}
			stop := errors.New("stop")
			_, err := putBackInSteps(t.Context(), s.checkpoint, PutBackOptions{Time: noon(), Undo: undo}, func(step string) error {
				if step == "part written" {
					return stop
				}
				return nil
			})
			if !errors.Is(err, stop) {
				t.Fatal(err)
			}
			path := ""
			for base := range s.describe(t) {
				if strings.HasSuffix(base, ofNoon) && base != "data/log"+ofNoon {
					path = filepath.Join(filepath.Dir(s.dir), base)
					change(t, strings.TrimSuffix(path, ofNoon))
				}
			}
			left, err := Undo(undo)
			must(t, err)
			if len(left) != 3 || !testenv.Exists(path) {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestKilledAtAnyMomentNothingNewerIsLost kills in the middle of steps.
func TestKilledAtAnyMomentNothingNewerIsLost(t *testing.T) {
	const size = 24 << 20
	dir := tempDir(t)
	path := write(t, filepath.Join(dir, "state"), strings.Repeat("a", size))
	root := startJob(t, order{Path: name(path), Flags: unix.O_RDWR})
	checkpoint := save(t, root, Options{})
	newer := strings.Repeat("b", size)
	write(t, path, newer)
	begun := time.Now()
	for _, cmd := range []*exec.Cmd{putBackProcess(t, checkpoint, -1), undoProcess(t, checkpoint, -1)} {
		must(t, cmd.Run())
	}
	usual := time.Since(begun)

	kills, most := 0, 0 // most is how many there may be until the end of a round
	ends := func(cmd *exec.Cmd) bool {
		started := time.Now()
		must(t, cmd.Start())
		if kills < most {
			timer := time.AfterFunc(rand.N(usual), func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
		}
		err := cmd.Wait()
		if err != nil && !wasKilled(err) {
			t.Fatal(err)
		}
		if err != nil {
			kills++
		} else {
			usual = time.Since(started) // the first one may have waited for a processor
		}
		return err == nil
	}
	for range 15 {
		most = kills + 6
		for !ends(putBackProcess(t, checkpoint, -1)) {
			for !ends(undoProcess(t, checkpoint, -1)) {
			}
			if names := namesIn(t, dir); len(names) != 1 || names["state"] != newer {
				t.Fatalf("%d names", len(names))
			}
		}
		names := namesIn(t, dir)
		if len(names) != 2 || names["state"] != strings.Repeat("a", size) || names["state"+ofNoon] != newer {
			t.Fatalf("%d names", len(names))
		}
		for !ends(undoProcess(t, checkpoint, -1)) {
		}
	}
	t.Logf("%d kills", kills)
	if kills == 0 {
		t.Error("nothing was killed")
	}
}
