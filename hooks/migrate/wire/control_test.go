package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
		"large":                 strings.Repeat("x", maxMessage),
		"":                      nil,
		pingKind:                nil,
		strings.Repeat("k", 65): nil,
		"no JSON":               func() {},
	} {
		if err := a.Send(kind, body); err == nil {
			t.Errorf("%.20q was sent", kind)
		}
	}
}

// framed is a message as it is on the wire, whatever its content.
func framed(content string) string {
	return messageMagic + string(binary.BigEndian.AppendUint32(nil, uint32(len(content)))) + content
}

func TestWhatIsNoMessageIsRefused(t *testing.T) {
	good := framed(`{"kind":"good"}`)
	for name, c := range map[string]struct{ stream, says string }{
		"two kinds":              {framed(`{"kind":"a","kind":"b"}`), "twice"},
		"two fields deep inside": {framed(`{"kind":"a","body":[{"x":{"y":1,"z":[],"y":2}}]}`), `"y" is there twice`},
		"no kind":                {framed(`{"body":1}`), "kind"},
		"a long kind":            {framed(`{"kind":"` + strings.Repeat("k", 65) + `"}`), "kind"},
		"no object":              {framed(`[]`), "cannot be read"},
		"two values":             {framed(`{"kind":"a"}{}`), "cannot be read"},
		"no JSON":                {framed(`{"kind"`), "cannot be read"},
		"nothing in it":          {messageMagic + "\x00\x00\x00\x00", "0 bytes"},
		"too long":               {messageMagic + "\x00\x40\x00\x01", "4194305 bytes"},
		"as long as can be":      {messageMagic + "\xff\xff\xff\xff", "4294967295 bytes"},
		"something in between":   {good + "Killed by signal 15.\r\n", `between two messages came "Killed by signal 15.\r\n"`},
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

func TestFieldsOfNewerVersionsAreIgnored(t *testing.T) {
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

func TestNegotiate(t *testing.T) {
	for name, c := range map[string]struct {
		ours, theirs Hello
		version      int
		says         string
	}{
		"equal":            {Hello{3, 1, "us"}, Hello{3, 2, "them"}, 3, ""},
		"they are newer":   {Hello{3, 1, "us"}, Hello{5, 3, "them"}, 3, ""},
		"we are newer":     {Hello{5, 2, "us"}, Hello{2, 1, "them"}, 2, ""},
		"we are too old":   {Hello{3, 1, "us"}, Hello{6, 4, "them"}, 0, "install a newer one here"},
		"they are too old": {Hello{6, 4, "us"}, Hello{3, 1, "them"}, 0, "install a newer one there"},
		"nonsense":         {Hello{3, 1, "us"}, Hello{-1, 0, "them\x1b[0m" + strings.Repeat("m", 1000)}, 0, `"them\x1b[0m`},
		"upside down":      {Hello{3, 1, "us"}, Hello{1, 2, "them"}, 0, "versions 2 to 1"},
	} {
		t.Run(name, func(t *testing.T) {
			version, err := Negotiate(c.ours, c.theirs)
			if version != c.version || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("version %d, %v", version, err)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

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
