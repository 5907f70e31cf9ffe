package jobs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/store"
	"cucriu/internal/testenv"
)

// TestTheRemedyForAnotherCommand is to remove a job that has failed and has no checkpoint.
func TestTheRemedyForAnotherCommand(t *testing.T) {
	dir := t.TempDir()
	if err := (record{Version: recordVersion, Name: "train", Dir: dir, Command: []string{"old"}}).write(dir); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		if _, _, err := openRecord(Options{Dir: dir, Command: []string{"new"}}); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	const goOn = "is the directory of another job: old: name another --dir, or leave out the command to continue that job"
	says(goOn + ", or remove it with cucriu jobs rm train")
	testenv.WriteFile(t, filepath.Join(dir, eventsName), `{"event":"started"}`+"\n"+`{"event":"ended","status":7}`+"\n")
	says("old: it ended with exit status 7 and has no checkpoint: remove it with cucriu jobs rm train, or name another --dir")
	if err := os.MkdirAll(filepath.Join(dir, "checkpoints", "000001"), 0o700); err != nil {
		t.Fatal(err)
	}
	says(goOn)
}

// TestACopyOfAJobIsNotMovedBack onto the job itself.
func TestACopyOfAJobIsNotMovedBack(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	r := record{Version: recordVersion, Name: "train", Dir: dir, Command: []string{"old"}}
	for want, at := range map[string][]string{": move it back": {other}, "remove it with rm -r " + other: {other, dir}} {
		for _, at := range at {
			if err := r.write(at); err != nil {
				t.Fatal(err)
			}
		}
		if err := CheckRecord(other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		_ = os.Remove(filepath.Join(dir, recordName))
	}
}

// TestAJobWhoseCheckpointsWereRemovedByHand is not started anew, and a job that runs does not count them any more.
func TestAJobWhoseCheckpointsWereRemovedByHand(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(dir, store.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begun := time.Now().Add(-time.Hour)
	r := record{Version: recordVersion, Name: "train", Dir: dir, Command: []string{"true"}, Begun: begun}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	if err := checkMade(dir); err != nil {
		t.Errorf("before a checkpoint was made: %v", err)
	}
	said := new(bytes.Buffer)
	c := &core{reporter: &reporter{dir: dir, messages: said, name: "train"}, Options: Options{Dir: dir}, record: r, store: s}
	c.tell(Event{Event: EventCheckpoint, Checkpoint: "000002"})
	c.tellRemoved()
	c.tellRemoved() // it is told once
	gone := filepath.Join(dir, "checkpoints", "000002") + " is missing"
	if n := strings.Count(said.String(), gone+", and there is no other: to make one, cucriu jobs checkpoint train"); n != 1 {
		t.Errorf("the supervisor says it %d times: %s", n, said)
	}
	if now := c.status.now; now.Checkpoint != nil || !now.WorkSince.Equal(begun) {
		t.Errorf("jobs list shows %+v", now)
	}
	if err := checkMade(dir); err == nil || preflight.Refused(err) || !strings.Contains(err.Error(), gone) {
		t.Errorf("the next start says %v", err)
	}
	if err := CheckMade(Local{Dir: dir, Name: "train", PID: 7}); err == nil || !strings.HasSuffix(err.Error(), "or make another: cucriu jobs checkpoint train") {
		t.Errorf("of a job that runs: %v", err)
	}
	l := Local{Dir: dir, Checkpoint: &Made{Name: "000002"}}
	if l.settle(); l.Checkpoint != nil || l.State != StateDamaged {
		t.Errorf("of the job that does not run, jobs list shows %+v", l)
	}
	if err := os.Mkdir(filepath.Join(dir, "checkpoints", "000001"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkMade(dir); err != nil {
		t.Errorf("with an older checkpoint: %v", err)
	}
}

// TestAJobWithoutItsRecordIsNamed with what can be done, by its name and by its directory, and is not removed.
func TestAJobWithoutItsRecordIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "checkpoints"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, removeErr := Remove(t.Context(), &hooks.Hook{}, Local{Name: "train", Dir: dir}, true, false)
	_, findErr := Find(t.TempDir(), dir)
	for _, err := range []error{removeErr, findErr} {
		if err == nil || !preflight.Refused(err) ||
			!strings.Contains(err.Error(), filepath.Join(dir, recordName)+" is missing: restore it from a backup, or name the command to cucriu run --dir "+dir+" again") {
			t.Errorf("%v", err)
		}
	}
	if _, err := Find(t.TempDir(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not the directory of a job") {
		t.Errorf("of another directory: %v", err)
	}
}

// TestAnAdoptedJobIsItsUsers, not root's.
func TestAnAdoptedJobIsItsUsers(t *testing.T) {
	const id = 12345 // nobody has a name for it
	cmd := exec.Command("/bin/sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	testenv.Eventually(t, testenv.Soon, "the program has its command line", func() bool { // not at once in execve
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		return err == nil && len(line) > 0
	})
	r, err := adoptedRecord(Options{Dir: t.TempDir(), Adopt: cmd.Process.Pid})
	if err != nil || r.User != strconv.Itoa(id) {
		t.Fatalf("the record is %+v (%v)", r, err)
	}
	if err := r.write(r.Dir); err != nil {
		t.Fatal(err)
	}
	if of, err := Describe(r.Dir); err != nil || of.User != r.User || !of.Adopted {
		t.Errorf("it is described as %+v (%v)", of, err)
	}
}
