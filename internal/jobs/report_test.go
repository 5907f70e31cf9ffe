package jobs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// lines counts what is said.
type lines struct{ n atomic.Int32 }

func (l *lines) Write(p []byte) (int, error) {
	l.n.Add(1)
	return len(p), nil
}

// TestWhatDoesNotEndIsTold in the log and to people, less and less often, and no more once it has
// ended.
func TestWhatDoesNotEndIsTold(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		said := new(lines)
		s := &reporter{dir: dir, messages: said, name: "train"}
		over := s.tellEvery(time.Minute, "the dump", func() string { return "criu waits in rpc_wait" })
		begun := time.Now()
		time.Sleep(16 * time.Minute)
		over()
		over()
		time.Sleep(time.Hour)
		synctest.Wait()
		if s.status.now.Failure == nil {
			t.Error("cucriu status does not show it")
		}
		data, err := os.ReadFile(filepath.Join(dir, eventsName))
		if err != nil {
			t.Fatal(err)
		}
		var after []time.Duration
		for line := range bytes.Lines(data) {
			var e Event
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatal(err)
			}
			after = append(after, e.At.Sub(begun))
			if e.Event != EventWaiting || e.Message != fmt.Sprintf("train: the dump has not ended after %v: criu waits in rpc_wait", after[len(after)-1]) {
				t.Errorf("the log says %+v", e)
			}
		}
		if want := []time.Duration{time.Minute, 3 * time.Minute, 7 * time.Minute, 15 * time.Minute}; !slices.Equal(after, want) || int(said.n.Load()) != len(want) {
			t.Errorf("it is in the log after %v, want %v; it was said %d times", after, want, said.n.Load())
		}
	})
}

// TestWhatAProgramWaitsForIsNamed, by process and by function of the kernel.
func TestWhatAProgramWaitsForIsNamed(t *testing.T) {
	outer := exec.Command("sh", "-c", "sleep 1000; true")
	if err := outer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outer.Wait() }()
	defer func() { _ = outer.Process.Kill() }()
	deadline := time.Now().Add(time.Minute)
	text := ""
	for !strings.HasPrefix(text, "sleep (process ") && time.Now().Before(deadline) {
		text = inSandbox(outer.Process.Pid, nil)
		time.Sleep(10 * time.Millisecond)
	}
	if !strings.HasPrefix(text, "sleep (process ") || !strings.Contains(text, " is waiting in ") {
		t.Errorf("it says %q", text)
	}
	inner, err := proc.Children(outer.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range inner {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
}

func TestEverySignalThatKillsAJobHasAName(t *testing.T) {
	for sig, want := range map[unix.Signal]string{unix.SIGKILL: "SIGKILL", 33: "signal 33", 34: "signal 34 (SIGRTMIN+0)", 40: "signal 40 (SIGRTMIN+6)", 64: "signal 64 (SIGRTMIN+30)"} {
		if got := nameOf(sig); got != want {
			t.Errorf("%d is %q, want %q", sig, got, want)
		}
	}
}

// TestQuietSaysWarningsAndErrorsOnly: what begins and ends well is neither.
func TestQuietSaysWarningsAndErrorsOnly(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		said := new(bytes.Buffer)
		r := &reporter{dir: t.TempDir(), messages: said, quiet: quiet}
		for _, e := range []Event{{Event: EventStarted}, {Event: EventResumed}, {Event: EventCheckpoint}, {Event: EventEnded}, {Event: EventTrial}} {
			e.Message = "news"
			r.tell(e)
		}
		r.inform("news")
		for _, e := range []Event{{Event: EventFailed}, {Event: EventSkipped}, {Event: EventEnded, Status: 7}, {Event: EventTrial, warns: true}} {
			e.Message = "trouble"
			r.tell(e)
		}
		news := map[bool]int{false: 6, true: 0}[quiet]
		if text := said.String(); strings.Count(text, "news") != news || strings.Count(text, "trouble") != 4 {
			t.Errorf("quiet %v:\n%s", quiet, text)
		}
	}
}
