package jsonlines

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestLinesAreRead(t *testing.T) {
	var stream strings.Builder
	for n := range 3 {
		if err := Write(&stream, map[string]int{"n": n}); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(strings.NewReader(stream.String()), 16)
	for n := range 3 {
		var got struct{ N int }
		if err := r.Read(&got); err != nil || got.N != n {
			t.Errorf("line %d: %+v, %v", n, got, err)
		}
	}
	if err := r.Read(nil); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// TestALineThatWasCutOffIsTold: a program was killed while it wrote, or a connection ended.
func TestALineThatWasCutOffIsTold(t *testing.T) {
	const line = `{"n":1}`
	for cut := 1; cut <= len(line); cut++ {
		if err := NewReader(strings.NewReader(line[:cut]), 100).Read(new(any)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", line[:cut], err)
		}
	}
}

func TestWhatIsNotALineIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		stream  string
		foreign bool
	}{
		"a banner":    {"Welcome\n", true},
		"a prompt":    {"$", true},
		"a list":      {"[]\n", true},
		"no JSON":     {"{\"n\n", false},
		"two values":  {"{}{}\n", false},
		"too long":    {`{"n":"` + strings.Repeat("n", 100) + "\"}\n", false},
		"without end": {`{"n":"` + strings.Repeat("n", 1<<16), false},
	} {
		t.Run(name, func(t *testing.T) {
			var invalid *InvalidError
			err := NewReader(strings.NewReader(c.stream), 100).Read(new(any))
			if !errors.As(err, &invalid) || invalid.Foreign != c.foreign || len(invalid.Found) == 0 || len(invalid.Found) > shown {
				t.Errorf("%v", err)
			}
		})
	}
}
