package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheEndOfTheStreamIsErrClosed(t *testing.T) {
	whole := framed(`{"kind":"last"}`)
	for cut := range len(whole) + 1 {
		c := NewControl(strings.NewReader(whole+whole[:cut]), io.Discard)
		m, err := c.Receive(t.Context())
		if err != nil || m.Kind != "last" {
			t.Fatalf("the message before the end: %+v, %v", m, err)
		}
		if cut == len(whole) {
			_, err = c.Receive(t.Context())
			must(t, err)
		}
		if _, err = c.Receive(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after %d bytes: %v", cut, err)
		}
		select {
		case <-c.Done():
		default:
			t.Error("it is not done")
		}
		if err := c.Send("more", nil); !errors.Is(err, ErrClosed) {
			t.Errorf("sent after the end: %v", err)
		}
	}
}

func TestReceiveEndsWithItsContext(t *testing.T) {
	a, b := controls(t)
	cause := errors.New("no more patience")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := b.Receive(ctx); !errors.Is(err, cause) {
		t.Fatalf("received %v", err)
	}
	go func() { _ = a.Send("still there", nil) }()
	m, err := b.Receive(t.Context())
	if err != nil || m.Kind != "still there" {
		t.Fatalf("received %+v, %v", m, err)
	}
}

func TestSilenceEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c := NewControl(ours, ours)
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		time.Sleep(time.Hour) // ssh asks for a password
		select {
		case <-c.Done():
			t.Fatal("given up before the first message")
		default:
		}
		_, err := theirs.Write([]byte(framed(`{"kind":"hello"}`)))
		must(t, err)
		heard := time.Now()
		_, err = c.Receive(t.Context())
		must(t, err)
		_, err = c.Receive(t.Context())
		if passed := time.Since(heard); !errors.Is(err, ErrSilent) || passed != silentDead {
			t.Fatalf("%v after %v", err, passed)
		}
	})
}

func TestPingsKeepAnIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := controls(t)
		go func() { _ = a.Send("hello", nil) }()
		_, err := b.Receive(t.Context())
		must(t, err)
		must(t, b.Send("hello", nil))
		_, err = a.Receive(t.Context())
		must(t, err)
		for range waiting + 10 { // nobody receives meanwhile
			go func() { _ = a.Send("later", nil) }()
		}
		time.Sleep(time.Hour)
		for range waiting + 10 {
			_, err := b.Receive(t.Context())
			must(t, err)
		}
		time.Sleep(time.Hour)
		must(t, b.Send("bye", nil))
		m, err := a.Receive(t.Context())
		if err != nil || m.Kind != "bye" {
			t.Fatalf("received %+v, %v", m, err)
		}
	})
}

// A pipe to an ssh whose network is gone takes no more.
func TestSendDoesNotHangWhenTheNetworkDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := NewControl(ours, ours)
		go func() { _, _ = theirs.Write([]byte(framed(`{"kind":"hello"}`))) }()
		began := time.Now()
		if err := c.Send("hello", nil); !errors.Is(err, ErrSilent) || time.Since(began) > 2*silentDead {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	})
}
