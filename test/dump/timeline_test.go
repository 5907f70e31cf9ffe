package dump

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cucriu/hooks/image"
	"cucriu/hooks/timeline"
	"cucriu/internal/core/journal"
	"cucriu/internal/testenv"
)

// TestTheTimelineHasEveryProcessOfADumpAndItsRestore: the image has the timeline of its
// dump, and each session has its own. Every process has its spans in it, and criu's work
// lies between ours.
func TestTheTimelineHasEveryProcessOfADumpAndItsRestore(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(2, "--procs", "2", "--gpus", "0,1")
		images := host.Dump(job)
		host.WaitOutcome("dumped")
		inImage, err := image.ReadTimeline(images)
		if err != nil {
			t.Fatal(err)
		}
		dump := host.Sessions()[0]
		want, each := []string{"lock", "checkpoint", "copy", "drop", "criu"}, []string{"lock", "checkpoint", "copy", "drop"}
		expectSpans(t, inImage, dump, want, each...)
		expectSpans(t, sessionTimeline(t, host, dump), dump, append(want, "publish"), each...)

		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		host.Restore(images)
		job.Runs()
		host.WaitOutcome("running")
		restore := host.Sessions()[1]
		expectSpans(t, sessionTimeline(t, host, restore), restore, []string{"pre-restore", "criu", "pre-resume", "criu", "post-resume", "restore", "unlock"}, "make accessible", "fill", "restore", "unlock")
	})
}

// TestTheTimelineHasTheFailureAndTheWayBack checks that both the failed step and the way
// back are in it.
func TestTheTimelineHasTheFailureAndTheWayBack(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		host.Faults("checkpoint return 999")
		testenv.Exits(t, host, testenv.StatusFailed, "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
		job.Runs()
		s := host.Sessions()[0]
		trace := sessionTimeline(t, host, s)
		expectSpans(t, trace, s, []string{"lock", "checkpoint", "unlock"}, "lock", "checkpoint", "unlock")
		for _, span := range trace.Spans() {
			if span.Failed() != (span.Name == "checkpoint") {
				t.Errorf("failed or not: %+v", span)
			}
		}
	})
}

// sessionTimeline reads the timeline that a closed session has written.
func sessionTimeline(t *testing.T, host *testenv.Host, s *journal.Session) timeline.Trace {
	t.Helper()
	var trace timeline.Trace
	testenv.Eventually(t, testenv.Soon, "the timeline is written", func() bool {
		data, err := os.ReadFile(filepath.Join(host.RunDir, "sessions", s.Name(), "timeline.json"))
		if err == nil {
			trace, err = timeline.Parse(data)
		}
		return err == nil
	})
	return trace
}

// expectSpans fails the test unless the session has these spans, each beginning after the
// one before, and every process has its own spans.
func expectSpans(t *testing.T, trace timeline.Trace, s *journal.Session, session []string, process ...string) {
	t.Helper()
	names := make(map[int][]string)
	for _, span := range trace.Spans() {
		if trace.RowOf(span) == "" {
			t.Errorf("a span of no row: %+v", span)
		}
		names[span.PID] = append(names[span.PID], span.Name)
	}
	for _, member := range s.Members {
		inOrder(t, names[member.PID], process)
	}
	inOrder(t, names[s.Criu.PID], session)
}

func inOrder(t *testing.T, names, want []string) {
	t.Helper()
	rest := names
	for _, name := range want {
		at := slices.Index(rest, name)
		if at < 0 {
			t.Errorf("the spans are %q, want %q in this order", names, want)
			return
		}
		rest = rest[at+1:]
	}
}
