package jobs

import (
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/inside"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/durable"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
	"cucriu/internal/testenv"
)

// outside starts a process of a job that runs in no sandbox, and returns what an image says of it.
func outside(t *testing.T) (of inside.Staged, end func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(end)
	id, err := proc.IdentOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	of = stagedAt(t, 0)
	of.Outside = []proc.Ident{id}
	return of, end
}

// stagedAt is what an image says that was made at a time on the job's clock.
func stagedAt(t *testing.T, at time.Duration) inside.Staged {
	t.Helper()
	boot, err := proc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return inside.Staged{
		BootID: boot, Begun: time.Now(), Number: 1, Root: 7, Reason: at.String(),
		Clocks: sandbox.Clocks{Monotonic: at},
	}
}

// makeImage makes what the store takes for an image.
func makeImage(t *testing.T, dir string, of inside.Staged) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(dir, "some.img"), "some")
	const noFiles = `{"version":1}`
	list := fmt.Sprintf(`{"crc32c":%d,"list":%s}`, crc32.Checksum([]byte(noFiles), durable.Castagnoli), noFiles)
	testenv.WriteFile(t, filepath.Join(dir, "cucriu-files.json"), list)
	if err := (records.Kind[inside.Staged]{Name: "cucriu-job.json"}).Write(dir, of); err != nil {
		t.Fatal(err)
	}
}

// TestProcessesThatStillRunRefuseAResume: they would run twice.
func TestProcessesThatStillRunRefuseAResume(t *testing.T) {
	of, end := outside(t)
	images := t.TempDir()
	makeImage(t, images, of)
	if err := refuseSurvivors(images); err == nil {
		t.Error("one of them runs")
	}
	end()
	if err := refuseSurvivors(images); err != nil {
		t.Errorf("all have ended: %v", err)
	}
	if err := refuseSurvivors(t.TempDir()); err != nil {
		t.Errorf("a job of a sandbox: %v", err)
	}
}

// TestWhatThisHostRefusesIsNotResumedFromAnOlderCheckpoint, which has less of the job's work.
func TestWhatThisHostRefusesIsNotResumedFromAnOlderCheckpoint(t *testing.T) {
	c, said := openedCore(t), new(strings.Builder)
	c.messages = said
	survivor, _ := outside(t)
	for _, of := range []inside.Staged{stagedAt(t, 0), survivor} {
		images := filepath.Join(t.TempDir(), "image")
		makeImage(t, images, of)
		if _, err := c.store.Publish(t.Context(), images, store.Info{CreatedAt: time.Now(), RootPID: 7}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := c.store.Checkpoints()
	if err != nil {
		t.Fatal(err)
	}
	err = (&starter{lease: &lease{core: c}}).resumeNewest(t.Context(), all)
	if !preflight.Refused(err) || !strings.Contains(err.Error(), "checkpoint 000002") ||
		strings.Contains(said.String(), "000001") {
		t.Errorf("%v; said %q", err, said)
	}
}

// TestTheNewestOfSeveralImagesIsSaved by the job's own clock.
func TestTheNewestOfSeveralImagesIsSaved(t *testing.T) {
	c, said := openedCore(t), new(strings.Builder)
	c.messages = said
	c.record.Command = []string{"train"}
	for _, at := range []time.Duration{time.Second, 3 * time.Second, 2 * time.Second} {
		dir, err := c.store.StageDir("", nil)
		if err != nil {
			t.Fatal(err)
		}
		makeImage(t, filepath.Join(dir, imageName), stagedAt(t, at))
		c.store.LeaveStage(dir)
	}
	saved, err := (&starter{lease: &lease{core: c}}).saveStaged(t.Context())
	if err != nil || len(saved) != 3 {
		t.Fatalf("%v, %v; said %q", saved, err, said)
	}
	all, err := c.store.Checkpoints()
	if err != nil || len(all) != 1 || all[0].Reason != "3s" {
		t.Errorf("%+v, %v", all, err)
	}
}
