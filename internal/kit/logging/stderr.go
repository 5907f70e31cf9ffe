package logging

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Stderr is this program's standard error for everything that it says: see [Writer].
var Stderr = sync.OnceValue(func() *Writer { return &Writer{to: os.Stderr} })

const (
	maxWaiting    = 64 << 10 // bytes that wait for a reader
	flushPatience = 3 * time.Second
	retryPause    = 10 * time.Millisecond
)

// Writer passes on what is written to it, and keeps nobody waiting: whoever reads it may have stopped
// (a terminal at Ctrl-S, a stopped tee). What there is no room for is dropped and counted.
type Writer struct {
	to io.Writer

	mutex   sync.Mutex
	waiting bytes.Buffer
	dropped int           // messages
	idle    chan struct{} // closed when nothing waits; nil if that is so
}

// Write never waits, and never fails.
func (w *Writer) Write(p []byte) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.waiting.Len()+len(p) > maxWaiting {
		w.dropped++
		return len(p), nil
	}
	w.waiting.Write(p)
	if w.idle == nil {
		w.idle = make(chan struct{})
		go w.pass()
	}
	return len(p), nil
}

func (w *Writer) pass() {
	for {
		w.mutex.Lock()
		if w.dropped > 0 {
			fmt.Fprintf(&w.waiting, "cucriu: %d messages were dropped here: they were not read in time\n", w.dropped)
		}
		text := bytes.Clone(w.waiting.Bytes())
		w.waiting.Reset()
		w.dropped = 0
		if len(text) == 0 {
			close(w.idle)
			w.idle = nil
		}
		w.mutex.Unlock()
		if len(text) == 0 {
			return
		}
		for len(text) > 0 {
			n, err := w.to.Write(text)
			text = text[n:]
			if err != nil && !errors.Is(err, unix.EAGAIN) {
				break // who reads it is gone
			}
			if err != nil { // some program that has our output made it nonblocking
				time.Sleep(retryPause)
			}
		}
	}
}

// Flush waits for a moment until everything is written. To be called before the program ends.
func (w *Writer) Flush() {
	w.mutex.Lock()
	idle := w.idle
	w.mutex.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(flushPatience):
	}
}
