package wire

import (
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"strings"
	"testing"
)

// liar is a receiver that says anything.
func liar(says func(conn net.Conn)) func(context.Context) (net.Conn, error) {
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go says(theirs)
		return ours, nil
	}
}

func TestWhatNoReceiverSaysIsRefused(t *testing.T) {
	welcome := (&answer{kind: welcomeAnswer, count: transferVersion}).encode()
	ack := func(n uint64) []byte { return (&answer{kind: ackAnswer, count: n}).encode() }
	for name, c := range map[string]struct {
		answers [][]byte
		says    string
	}{
		"another version":         {[][]byte{(&answer{kind: welcomeAnswer, count: 7}).encode()}, "version 7"},
		"no welcome":              {[][]byte{ack(0)}, "no welcome"},
		"nonsense":                {[][]byte{bytes.Repeat([]byte{0x55}, 64)}, "what nobody sends"},
		"another welcome":         {[][]byte{welcome, welcome}, "frames acknowledged"},
		"more than was sent":      {[][]byte{welcome, ack(3)}, "3 frames acknowledged"},
		"far more":                {[][]byte{welcome, ack(math.MaxUint64)}, "frames acknowledged"},
		"a failure without words": {[][]byte{welcome, (&answer{kind: failedAnswer}).encode()}, "what nobody sends"},
		"a failure":               {[][]byte{welcome, (&answer{kind: failedAnswer, reason: "bad \x1b[31m luck"}).encode()}, `"bad \x1b[31m luck"`},
		"a long failure":          {[][]byte{welcome, (&answer{kind: failedAnswer, reason: strings.Repeat("x", 5000)}).encode()}, strings.Repeat("x", 1024)},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewSender(t.Context(), SendOptions{Streams: 1, Dial: liar(func(conn net.Conn) { _, _ = conn.Write(bytes.Join(c.answers, nil)) })})
			must(t, err)
			_ = s.Range(t.Context(), "a", strings.NewReader("x"), 0, 1)
			if _, err := s.Finish(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 1200 {
				t.Errorf("finished with %v", err)
			}
		})
	}
}
