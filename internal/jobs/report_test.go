package jobs

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cucriu/internal/proc"
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
	said := new(lines)
	s := &reporter{dir: t.TempDir(), messages: said, name: "train"}
	over := s.tellEvery(20*time.Millisecond, "the dump", func() string { return "criu waits in rpc_wait" })
	deadline := time.Now().Add(10 * time.Second)
	for said.n.Load() < 4 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	over()
	over()
	told := said.n.Load()
	time.Sleep(200 * time.Millisecond) // one that was on its way
	log, err := os.Open(filepath.Join(s.dir, eventsName))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var at []time.Time
	for scanner := bufio.NewScanner(log); scanner.Scan(); {
		var e Event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event != EventWaiting || !strings.HasPrefix(e.Message, "train: the dump has not ended after ") || !strings.HasSuffix(e.Message, "criu waits in rpc_wait") {
			t.Errorf("the log says %+v", e)
		}
		at = append(at, e.At)
	}
	if told < 4 || len(at) < 4 {
		t.Fatalf("it was said %d times, and is in the log %d times", told, len(at))
	}
	if first, last := at[1].Sub(at[0]), at[3].Sub(at[2]); last < 2*first {
		t.Errorf("told after %v, and then after %v", first, last)
	}
	if s.status.now.Failure == nil {
		t.Error("cucriu status does not show it")
	}
	now := said.n.Load()
	time.Sleep(500 * time.Millisecond)
	if said.n.Load() != now || now > told+1 {
		t.Errorf("it was said %d times, and %d times after its end", told, said.n.Load())
	}
}

// TestWhatAProgramWaitsForIsNamed, by process and by function of the kernel.
func TestWhatAProgramWaitsForIsNamed(t *testing.T) {
	outer := exec.Command("sh", "-c", "sleep 1000; true")
	if err := outer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outer.Wait() }()
	defer func() { _ = outer.Process.Kill() }()
	deadline := time.Now().Add(10 * time.Second)
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
