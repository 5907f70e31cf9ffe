package logging

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// TestNobodyWaitsForAReader: what is not read is dropped and counted, and the rest comes in order.
func TestNobodyWaitsForAReader(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w := &Writer{to: writer}
	line := strings.Repeat("x", 1023) + "\n"
	for range 1000 {
		if n, err := io.WriteString(w, line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	w.Flush() // gives up
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		read <- string(text)
	}()
	untilIdle := func() {
		for isIdle := false; !isIdle; {
			w.Flush()
			w.mutex.Lock()
			isIdle = w.idle == nil
			w.mutex.Unlock()
		}
	}
	untilIdle()
	_, _ = io.WriteString(w, "last\n")
	untilIdle()
	writer.Close()
	all, lines, dropped := <-read, 0, 0
	for text := range strings.Lines(all) {
		var n int
		if text == line {
			lines++
		} else if _, err := fmt.Sscanf(text, "cucriu: %d messages were dropped here", &n); err == nil {
			dropped += n
		}
	}
	if lines < maxWaiting/len(line) || lines+dropped != 1000 || !strings.HasSuffix(all, "last\n") {
		t.Errorf("%d lines are there, and %d left out; the last: %q", lines, dropped, all[max(0, len(all)-200):])
	}
}
