package wire

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// FuzzMessage checks that whatever is read as a message is one, and that all else ends with an
// error.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(framed(`{"kind":"hello","body":{"version":1,"program":"cucriu 1"}}`)))
	f.Add([]byte(framed(`{"kind":"a","body":[{},[],"",{"a":{"a":{"a":[1,2,{"b":null}]}}}]}`)))
	f.Add([]byte(framed(`{"kind":"a"}`) + `{"kind":"b"`))
	f.Add([]byte("Last login: today\r\n" + framed(`{"kind":"a"}`)))
	f.Add([]byte(framed(strings.Repeat("[", 20000))))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := NewControl(bytes.NewReader(data), io.Discard)
		defer c.Close()
		for {
			m, err := c.Receive(t.Context())
			if err != nil {
				break
			}
			if m.Kind == pingKind {
				t.Fatal("a ping was received")
			}
			var body any
			if err := m.Decode(&body); len(m.Body) > 0 && err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Send("late", nil); err == nil {
			t.Fatal("sent over a connection that is over")
		}
	})
}
