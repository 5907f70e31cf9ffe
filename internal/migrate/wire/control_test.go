package wire

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// controls returns the two ends of a control connection.
func controls(t *testing.T) (*Control, *Control) {
	t.Helper()
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	a, b := NewControl(r1, w2), NewControl(r2, w1)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

type note struct {
	Text  string `json:"text"`
	Count int    `json:"count,omitempty"`
}

func TestMessagesArriveInOrder(t *testing.T) {
	a, b := controls(t)
	large := strings.Repeat("x", maxMessage-100)
	go func() {
		_ = a.Send("first", note{Text: "one", Count: 1})
		_ = a.Send("large", note{Text: large})
		_ = a.Send("empty", nil)
	}()
	var got note
	m, err := b.Receive(t.Context())
	must(t, err)
	must(t, m.Decode(&got))
	if m.Kind != "first" || got != (note{"one", 1}) {
		t.Errorf("received %q, %+v", m.Kind, got)
	}
	m, err = b.Receive(t.Context())
	must(t, err)
	must(t, m.Decode(&got))
	if m.Kind != "large" || got.Text != large {
		t.Errorf("received %q with %d bytes", m.Kind, len(got.Text))
	}
	m, err = b.Receive(t.Context())
	must(t, err)
	if m.Kind != "empty" || m.Decode(&got) == nil {
		t.Errorf("received %q with the body %q", m.Kind, m.Body)
	}
}

func TestWhatIsSentIsBounded(t *testing.T) {
	a, _ := controls(t)
	for kind, body := range map[string]any{
		"large":   strings.Repeat("x", maxMessage),
		"no JSON": func() {},
	} {
		if err := a.Send(kind, body); err == nil {
			t.Errorf("%.20q was sent", kind)
		}
	}
}

// framed is a message as it is on the wire, whatever its content.
func framed(content string) string { return content + "\n" }

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	good := framed(`{"kind":"good"}`)
	for name, c := range map[string]struct{ stream, says string }{
		"no object":            {framed(`[]`), "expected cucriu, but received"},
		"an earlier version":   {"\x00cuc\x00\x00\x00\x0e" + `{"kind":"good"}`, "same version"},
		"two values":           {framed(`{"kind":"a"}{}`), "invalid line"},
		"no JSON":              {framed(`{"kind"`), "invalid line"},
		"too long":             {framed(`{"kind":"` + strings.Repeat("k", maxMessage) + `"}`), "more than 4194304 bytes"},
		"something in between": {good + "Killed by signal 15.\r\n", `unexpected data between messages, "Killed by signal 15.\r\n"`},
	} {
		t.Run(name, func(t *testing.T) {
			c0 := NewControl(strings.NewReader(c.stream), io.Discard)
			defer c0.Close()
			m, err := c0.Receive(t.Context())
			if strings.HasPrefix(c.stream, good) {
				must(t, err)
				m, err = c0.Receive(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, ErrClosed) {
				t.Errorf("received %+v, %v", m, err)
			}
		})
	}
}

func TestABannerIsShownSafely(t *testing.T) {
	for name, banner := range map[string]string{
		"motd":    "Welcome to Ubuntu \x1b[31m24.04\x07 \u202e LTS\n" + strings.Repeat("more\n", 100),
		"short":   "$",
		"a zero":  "\x00\x00",
		"nothing": "\r\n" + framed(`{"kind":"hello"}`),
	} {
		t.Run(name, func(t *testing.T) {
			c := NewControl(io.MultiReader(strings.NewReader(banner), silent{t.Context()}), io.Discard)
			defer c.Close()
			_, err := c.Receive(t.Context())
			if err == nil || !strings.Contains(err.Error(), "must print nothing for non-interactive commands") {
				t.Fatalf("the error is %v", err)
			}
			if strings.ContainsAny(err.Error(), "\x1b\x07\u202e\n\x00") || len(err.Error()) > 1000 {
				t.Errorf("the error is not safe to print: %q", err)
			}
			if name == "motd" && !strings.Contains(err.Error(), `"Welcome to Ubuntu \x1b[31m24.04`) {
				t.Errorf("%v does not show what came", err)
			}
		})
	}
}

// silent is a reader to which nothing comes.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, io.EOF
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	c := NewControl(strings.NewReader(framed(`{"kind":"a","body":{"text":"x","new":{"deep":[1]}},"newer":true}`)), io.Discard)
	defer c.Close()
	m, err := c.Receive(t.Context())
	must(t, err)
	var got note
	must(t, m.Decode(&got))
	if got.Text != "x" {
		t.Errorf("received %+v", got)
	}
	if err := m.Decode(&[]int{}); err == nil {
		t.Error("an object was read as a list")
	}
}
