package session

import (
	"os"
	"sync"
	"testing"
)

// TestProcessesForgetWhatIsKeptAtTheSameTime: the way back does it when each has its memory again. A race ends the watcher, and the job stays stopped.
func TestProcessesForgetWhatIsKeptAtTheSameTime(t *testing.T) {
	const processes = 1000
	var s Session
	for pid := range processes {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		write.Close()
		s.kept.Store(pid, read)
	}
	var all sync.WaitGroup
	for pid := range processes {
		all.Go(func() {
			if s.Kept(pid) == nil {
				t.Errorf("what is kept of process %d is lost", pid)
			}
			s.ForgetKept(pid)
		})
	}
	all.Wait()
	for pid := range processes {
		if s.Kept(pid) != nil {
			t.Errorf("what was kept of process %d is still there", pid)
		}
	}
}
