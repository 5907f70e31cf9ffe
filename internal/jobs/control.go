package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/store"
)

// What people ask of a job that runs goes to its supervisor, over a socket in the folder of the
// job in the run directory: one request, then lines with what is under way, then the answer.

const socketName = "control.sock"

// What a supervisor can be asked.
const (
	AskCheckpoint = "checkpoint" // make one now
	AskPause      = "pause"      // free the GPUs, and stand still
	AskResume     = "resume"     // go on after a pause
	AskStop       = "stop"       // leave this host, as at a preemption
	AskPrune      = "prune"      // remove old checkpoints
)

// Request is what a supervisor is asked.
type Request struct {
	Op    string       `json:"op"`
	Prune store.Policy `json:"prune,omitzero"`
}

// Answer is what it answers.
type Answer struct {
	// Progress says what is under way. The answer itself has none.
	Progress   string   `json:"progress,omitempty"`
	Message    string   `json:"message,omitempty"`
	Checkpoint string   `json:"checkpoint,omitempty"` // the name of the one that was made
	Removed    []string `json:"removed,omitempty"`    // their names
	Error      string   `json:"error,omitempty"`
	// Refused says that nothing was touched.
	Refused bool `json:"refused,omitempty"`
}

// asked is a request that waits for its answer.
type asked struct {
	Request
	mutex   sync.Mutex
	encoder *json.Encoder
	ended   chan struct{}
}

func (a *asked) say(progress string) { a.send(Answer{Progress: progress}) }

func (a *asked) send(answer Answer) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	_ = a.encoder.Encode(answer) // who asked may have gone
}

// answer ends the request.
func (a *asked) answer(answer Answer, err error) {
	if err != nil {
		answer.Error, answer.Refused = err.Error(), preflight.Refused(err)
	}
	a.send(answer)
	close(a.ended)
}

// control is the supervisor's end of the socket.
type control struct {
	requests chan *asked
	listener net.Listener
	over     chan struct{} // closed when nothing is served any more
	wait     sync.WaitGroup
	last     func() // answers the request that has ended the job
}

// listen begins to take requests. Only one supervisor of a job is on this host: it has the lock.
func (s *supervisor) listen() error {
	if err := os.Remove(filepath.Join(s.runDir, socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, err := os.Open(s.runDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	listener, err := net.Listen("unix", socketIn(dir))
	if err != nil {
		return fmt.Errorf("socket for requests: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // its path is valid only here
	s.control = control{requests: make(chan *asked), listener: listener, over: make(chan struct{})}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			s.control.wait.Go(func() { s.control.serve(conn, s.underWay) })
		}
	}()
	return nil
}

// socketIn names the socket by the descriptor of its directory, because the path of a socket has
// room for 107 bytes only.
func socketIn(dir *os.File) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), socketName)
}

// requestPatience is how long whoever connects may take to say what is asked for.
const requestPatience = 10 * time.Second

// serve hands one request to the supervisor's loop.
func (c *control) serve(conn net.Conn, underWay func() string) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := &asked{encoder: json.NewEncoder(conn), ended: make(chan struct{})}
	_ = conn.SetReadDeadline(time.Now().Add(requestPatience))
	decoder := json.NewDecoder(conn)
	if err := decoder.Decode(&a.Request); err != nil {
		return // somebody looked whether we are here
	}
	_ = conn.SetReadDeadline(time.Time{})
	go func() {
		_, _ = decoder.Token() // there is no more, so this is the end
		cancel()
	}()
	if text := underWay(); text != "" {
		a.say(text + "; this waits for it")
	}
	select {
	case c.requests <- a:
	case <-ctx.Done():
		return
	case <-c.over:
		a.answer(Answer{}, preflight.AsRefusal(errors.New("the job has ended, or is about to")))
		return
	}
	<-a.ended
}

// partingPatience is how long those who still ask may take to read that nothing is served.
const partingPatience = time.Second

// endControl answers what is still asked. The store is given back by now, so that whoever has asked to
// stop the job can start it elsewhere at once.
func (s *supervisor) endControl() {
	if s.control.listener == nil {
		return
	}
	s.control.listener.Close()
	close(s.control.over)
	if s.control.last != nil {
		s.control.last()
	}
	told := make(chan struct{})
	go func() { s.control.wait.Wait(); close(told) }()
	select {
	case <-told:
	case <-time.After(partingPatience):
	}
	_ = os.Remove(filepath.Join(s.runDir, socketName))
}

// underWay says what a request has to wait for; "" if for nothing.
func (s *supervisor) underWay() string {
	s.board.mutex.Lock()
	defer s.board.mutex.Unlock()
	switch s.board.now.State {
	case StateBegins:
		return "the job is being started or resumed"
	case StateCheckpoint:
		return "a checkpoint is being made"
	}
	return ""
}
