package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"cucriu/hooks"
	"cucriu/hooks/preflight"
	"cucriu/internal/jobs/life"
	"cucriu/internal/jobs/sandbox"
	"cucriu/internal/jobs/store"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
)

// What people ask of a job that runs goes to its supervisor, over a socket in the folder of the
// job in the run directory: one request, then lines with what is under way, then the answer.

const socketName = "control.sock"

// Request is what a supervisor is asked.
type Request struct {
	Op    life.Op      `json:"op"`
	Prune store.Policy `json:"prune,omitzero"`
	// When and Timeout are for how long a checkpoint waits: see [ready.Parse]. 0 is no limit.
	When    string        `json:"when,omitempty"`
	Timeout time.Duration `json:"timeout_ns,omitempty"`
}

// Answer is what it answers.
type Answer struct {
	// Progress says what is under way, and Expected how long that takes; 0 if it is not known. The
	// answer itself has none.
	Progress   string        `json:"progress,omitempty"`
	Expected   time.Duration `json:"expected_ns,omitempty"`
	Message    string        `json:"message,omitempty"`
	Checkpoint string        `json:"checkpoint,omitempty"` // the name of the one that was made
	Removed    []string      `json:"removed,omitempty"`    // their names
	Error      string        `json:"error,omitempty"`
	// Refused says that nothing was touched.
	Refused bool `json:"refused,omitempty"`
	// Ended says that the job has ended before it was ready.
	Ended bool `json:"ended,omitempty"`
}

// asked is a request that waits for its answer.
type asked struct {
	Request
	conn  net.Conn
	ended chan struct{}
	of    *proc.Ident // the first process of the sandbox of the job that was found ready; nil if that was not asked
}

func (a *asked) say(progress string, expected time.Duration) {
	a.send(Answer{Progress: progress, Expected: expected})
}

// sendPatience is how long whoever has asked may take to read what it is told.
const sendPatience = 10 * time.Second

func (a *asked) send(answer Answer) {
	_ = a.conn.SetWriteDeadline(time.Now().Add(sendPatience))
	_ = json.NewEncoder(a.conn).Encode(answer) // who asked may have gone
}

// answer ends the request.
func (a *asked) answer(answer Answer, err error) {
	if err != nil {
		answer.Error, answer.Refused, answer.Ended = err.Error(), preflight.Refused(err), errors.Is(err, hooks.ErrEnded)
	}
	a.send(answer)
	close(a.ended)
}

// control is the supervisor's end of the socket. The loop takes one request after the other.
type control struct {
	*core
	requests chan *asked
	listener net.Listener
	over     chan struct{} // closed when nothing is served any more
	wait     sync.WaitGroup
	last     func(err error) // answers the request that has ended the job

	asked   *asked           // the request that waits for its answer
	made    store.Checkpoint // by the last action that made one
	lastErr error            // of the last checkpoint that was to end the job
}

// listen begins to take requests. Only one supervisor of a job is on this host: it has the lock.
func (c *control) listen() error {
	if err := removeFile(c.runDir, socketName); err != nil {
		return err
	}
	dir, err := os.Open(c.runDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	listener, err := net.Listen("unix", proc.PathIn(dir, socketName))
	if err != nil {
		return fmt.Errorf("socket for requests: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // its path is valid only here
	c.requests, c.listener, c.over = make(chan *asked), listener, make(chan struct{})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			c.wait.Go(func() { c.serve(conn) })
		}
	}()
	return nil
}

// requestPatience is how long whoever connects may take to say what is asked for.
const requestPatience = 10 * time.Second

// serve hands one request to the supervisor's loop.
func (c *control) serve(conn net.Conn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := &asked{conn: conn, ended: make(chan struct{})}
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
	if err := c.refuseInside(a); err != nil {
		a.answer(Answer{}, err)
		return
	}
	if a.Op == life.AskWhen {
		if err := c.serveWhen(ctx, a); err != nil {
			a.answer(Answer{}, err)
			return
		}
		a.Op = life.AskCheckpoint
	}
	if text := c.status.underWay(); text != "" {
		a.say(text+"; this waits for it", 0)
	}
	select {
	case c.requests <- a:
	case <-ctx.Done():
		return
	case <-c.over:
		a.answer(Answer{}, errOver)
		return
	}
	<-a.ended
}

// refuseInside refuses what a process of the job asks for and would be stopped by, or be part of with its connection to us.
func (c *control) refuseInside(a *asked) error {
	conn, isUNIX := a.conn.(*net.UnixConn)
	if !isUNIX || a.Op == life.AskPrune {
		return nil
	}
	c.status.mutex.Lock()
	init := c.status.now.Init
	c.status.mutex.Unlock()
	for pid := peerOf(conn); pid > 0; { // up to the job's init, which may not be on record yet
		if init != nil && pid == init.PID || sandbox.JobOf(pid) == c.Dir {
			return preflight.AsRefusal(runsInside("jobs "+string(a.Op), c.name, "would be part of what it stops"))
		}
		status, err := proc.ReadStatus(pid)
		if err != nil {
			return nil // it has ended
		}
		pid = status.PPID
	}
	return nil
}

// runsInside refuses a command of cucriu that a process of a job has started.
func runsInside(command, job, why string) error {
	return fault.New(fmt.Sprintf("cucriu %s runs inside %s, and %s", command, job, why),
		"run it outside the job, in another shell of this host")
}

var errOver = preflight.AsRefusal(errors.New("the job has ended, or is about to"))

// partingPatience is how long those who still ask may take to read that nothing is served.
const partingPatience = time.Second

// end answers what is still asked. The store is given back by now, so that whoever has asked to
// stop the job can start it elsewhere at once. err is how the supervisor has ended.
func (c *control) end(err error) {
	if c.listener == nil {
		return
	}
	c.listener.Close()
	close(c.over)
	if c.last != nil {
		c.last(err)
	}
	told := make(chan struct{})
	go func() { c.wait.Wait(); close(told) }()
	select {
	case <-told:
	case <-time.After(partingPatience):
	}
	_ = os.Remove(filepath.Join(c.runDir, socketName))
}

// answer ends the request of the loop.
func (c *control) answer(a Answer, err error) {
	c.asked.answer(a, err)
	c.asked = nil
}

// answerAtEnd answers it once the store is given back.
func (c *control) answerAtEnd() {
	a, made := c.asked, c.made
	c.last = func(err error) {
		if err != nil {
			err = fmt.Errorf("%s has a last checkpoint, %s, but was not stopped properly: %w", c.name, made.Name, err)
		}
		a.answer(Answer{Message: sayCheckpoint(made), Checkpoint: made.Name}, err)
	}
	c.asked = nil
}

// result is the answer to the request, by what has ended. over says that the supervisor ends.
func (c *control) result(e event, over bool) (a Answer, err error) {
	switch c.asked.Op {
	case life.AskCheckpoint:
		if made := e.checkpoint; made.Name != "" {
			a = Answer{Message: sayCheckpoint(made), Checkpoint: made.Name}
		}
		return a, e.err
	case life.AskPause:
		a, err = Answer{Message: c.name + " is paused", Checkpoint: c.made.Name}, e.err
		if err != nil {
			err = fmt.Errorf("%s is not paused: %w", c.name, err)
		}
		return a, err
	case life.AskResume:
		return Answer{Message: c.name + " is resumed"}, e.err
	case life.AskPrune:
		for _, old := range e.removed {
			a.Removed = append(a.Removed, old.Name)
		}
		return a, e.err
	}
	what, stays := "was not stopped", "keeps running"
	if held, _ := c.suspended(); len(held) > 0 {
		stays = "stays suspended"
	}
	if c.asked.Op == life.AskMove {
		what, stays = "did not move", stays+" here"
	}
	switch {
	case e.of == life.EndSandbox: // all of it is gone
		return Answer{Message: sayCheckpoint(c.made), Checkpoint: c.made.Name}, errors.Join(c.lastErr, e.err)
	case over: // its image is whole, and is not yet a checkpoint
		return a, e.err
	case e.of == life.Unpause: // the error says whether it is still paused
		return a, fmt.Errorf("%s %s: %w", c.name, what, e.err)
	}
	return a, fmt.Errorf("%s %s, and %s: %w", c.name, what, stays, e.err)
}

// refusal says why a request is not served.
func (c *control) refusal(at life.State, peer string, cause error) error {
	why := "the supervisor of %s does not support " + strconv.Quote(string(c.asked.Op)) + ": its version differs from this cucriu"
	switch op := c.asked.Op; {
	case at.Phase == life.Undecided:
		return preflight.AsRefusal(fmt.Errorf("%s is being moved to %s", c.name, peer))
	case at.Phase != life.Running || at.Leave || at.Gone:
		return errOver
	case op == life.AskMove:
		return errors.Join(fmt.Errorf("%s did not move, and keeps running here: no move is under way: move it with cucriu migrate --job", c.name), cause)
	case op == life.AskCheckpoint:
		why = "%s is paused, and makes no checkpoints: resume it with cucriu jobs resume %[1]s"
	case op == life.AskPause:
		why = "%s is already paused: resume it with cucriu jobs resume %[1]s"
	case op == life.AskResume:
		if suspended := c.refuseSuspended(); suspended != nil {
			return preflight.AsRefusal(fmt.Errorf("%s is not paused: %w", c.name, suspended))
		}
		why = "%s is not paused"
	}
	return preflight.AsRefusal(fmt.Errorf(why, c.name))
}
