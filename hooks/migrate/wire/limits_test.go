package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPatienceEndsWithoutAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unreachable := errors.New("no route to host")
		s, err := NewSender(t.Context(), SendOptions{Patience: time.Minute, Dial: func(context.Context) (net.Conn, error) { return nil, unreachable }})
		must(t, err)
		began := time.Now()
		endless := bytes.NewReader(make([]byte, (queued+10)*chunkSize))
		if err := s.Range(t.Context(), "a", endless, 0, endless.Size()); !errors.Is(err, unreachable) || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := s.Finish(t.Context()); !errors.Is(err, unreachable) || !strings.Contains(err.Error(), "no data connection to the other host for 1m0s") {
			t.Errorf("finished with %v", err)
		}
	})
}

func TestTheLimitIsKept(t *testing.T) {
	for _, limit := range []int64{2_000, 1_000_000, 100_000_000} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocal(t, ReceiveOptions{})
				s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 4, BytesPerSecond: limit})
				must(t, err)
				began := time.Now()
				totals, err := sendAll(t.Context(), s, map[string][]byte{"a": bytes.Repeat([]byte("x"), 3<<20)})
				must(t, err)
				least := time.Duration(float64(totals.Sent) / float64(limit) * float64(time.Second))
				if took := time.Since(began); took < least*95/100 || took > least*105/100+time.Second {
					t.Errorf("%d bytes took %v, and %v is right", totals.Sent, took, least)
				}
				if totals.Resent > 0 {
					t.Errorf("the limit broke connections: %+v", totals)
				}
			})
		})
	}
}

func TestSendingEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		cause := errors.New("the user has changed his mind")
		ctx, cancel := context.WithCancelCause(t.Context())
		s, err := NewSender(ctx, SendOptions{Dial: l.dial, BytesPerSecond: 1000})
		must(t, err)
		must(t, s.Range(t.Context(), "a", bytes.NewReader(make([]byte, 100)), 0, 100))
		time.Sleep(time.Minute)
		cancel(cause)
		if err := s.Close(t.Context(), "a", 100); !errors.Is(err, cause) {
			t.Errorf("closed with %v", err)
		}
		if _, err := s.Finish(t.Context()); !errors.Is(err, cause) {
			t.Errorf("finished with %v", err)
		}
		if err := l.receiver.Finish(); err == nil || !strings.Contains(err.Error(), "the sender has not finished: a: the sender has not said that it is complete") {
			t.Errorf("received with %v", err)
		}
	})
}

// A network that breaks now and then is no reason to give up a transfer that waits for the job.
func TestIdleConnectionsMayBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocal(t, ReceiveOptions{})
		l.wrap = func(_ int64, conn net.Conn) net.Conn {
			time.AfterFunc(time.Minute, func() { conn.Close() })
			return conn
		}
		s, err := NewSender(t.Context(), SendOptions{Dial: l.dial, Streams: 1})
		must(t, err)
		time.Sleep(2 * time.Hour)
		totals, err := sendAll(t.Context(), s, map[string][]byte{"a": []byte("content")})
		must(t, err)
		must(t, l.receiver.Finish())
		if totals.Connections < 100 {
			t.Errorf("%+v", totals)
		}
	})
}
