package timeline

import (
	"testing"

	"cucriu/internal/kit/proc"
)

func FuzzParseTimeline(f *testing.F) {
	f.Add([]byte(`{"traceEvents": [{"name": "lock", "ph": "X", "ts": 1, "dur": 2, "pid": 3, "tid": 3, "args": {"failed": "true"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		trace, err := Parse(data)
		if err != nil {
			return
		}
		for _, span := range trace.Spans() {
			if span.Start < 0 || span.Start+span.Duration < span.Start || span.Name+trace.RowOf(span) != proc.Printable(span.Name+trace.RowOf(span)) {
				t.Fatalf("accepted: %s", data)
			}
		}
	})
}
