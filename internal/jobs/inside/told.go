package inside

import (
	"context"
	"log/slog"
	"strings"
	"sync"
)

// told hands a log on, but for warnings that were told before: a checkpoint of a job would repeat those of the
// last one, every time. It names processes as they are known outside the sandbox.
type told struct {
	slog.Handler
	what *warnings
	pids PIDs
}

// warnings are those that the supervisor knows of, and those that are new.
type warnings struct {
	mutex sync.Mutex
	known map[string]bool
	fresh []string
}

func toldBefore(before []string) *warnings {
	w := &warnings{known: make(map[string]bool)}
	for _, text := range before {
		w.known[text] = true
	}
	return w
}

const (
	// MaxTold is how many warnings of a job are remembered. A job can make new ones as long as it likes.
	MaxTold = 100
	maxText = 1 << 10 // bytes
)

// isNew reports whether a warning was not told before, and notes it.
func (w *warnings) isNew(text string) bool {
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "?") // as it comes back
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.known[text] {
		return false
	}
	if len(w.known) < MaxTold {
		w.known[text] = true
		w.fresh = append(w.fresh, text)
	}
	return true
}

// new returns the new ones.
func (w *warnings) new() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.fresh
}

// Handle implements [slog.Handler], as do the methods below.
func (h told) Handle(ctx context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	if r.Level == slog.LevelWarn && !h.what.isNew(text) {
		return nil
	}
	return h.Handler.Handle(ctx, h.pids.record(r))
}

func (h told) WithAttrs(attrs []slog.Attr) slog.Handler {
	return told{h.Handler.WithAttrs(attrs), h.what, h.pids}
}

func (h told) WithGroup(name string) slog.Handler {
	return told{h.Handler.WithGroup(name), h.what, h.pids}
}
