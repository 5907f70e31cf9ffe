package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// FuzzMessage checks that whatever is read as a message is one, and that all else ends with an
// error.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(framed(`{"kind":"hello","body":{"version":1,"oldest":1,"program":"cucriu 1"}}`)))
	f.Add([]byte(framed(`{"kind":"a","body":[{},[],"",{"a":{"a":{"a":[1,2,{"b":null}]}}}]}`)))
	f.Add([]byte(framed(`{"kind":"a","body":{"x":1,"x":2}}`)))
	f.Add([]byte(framed(`{"kind":"a","\u0062ody":1,"body":2}`)))
	f.Add([]byte("\x00cuc\xff\xff\xff\xff{"))
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
			if m.Kind == "" || m.Kind == pingKind || len(m.Kind) > maxKind {
				t.Fatalf("received a message of the kind %q", m.Kind)
			}
			if len(m.Body) > 0 {
				var body any
				if err := m.Decode(&body); err != nil {
					t.Fatal(err)
				}
				again, err := json.Marshal(body)
				if err != nil || refuseDuplicates(m.Body) != nil || refuseDuplicates(again) != nil {
					t.Fatalf("received the body %q", m.Body)
				}
			}
		}
		if err := c.Send("late", nil); err == nil {
			t.Fatal("sent over a connection that is over")
		}
	})
}
