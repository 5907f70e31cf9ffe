package jobs

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/jobs/sandbox"
)

// TestWhenAJobIsStartedAgain is the table of Restart= in systemd.service(5).
func TestWhenAJobIsStartedAgain(t *testing.T) {
	status := func(code int) sandbox.Exit { return sandbox.Exit{Status: unix.WaitStatus(code << 8)} }
	signal := func(sig unix.Signal) sandbox.Exit { return sandbox.Exit{Status: unix.WaitStatus(sig)} }
	for _, test := range []struct {
		name              string
		exit              sandbox.Exit
		onFailure, always bool
	}{
		{"status 0", status(0), false, true},
		{"status 1", status(1), true, true},
		{"status 143", status(143), true, true},
		{"SIGHUP", signal(unix.SIGHUP), false, true},
		{"SIGINT", signal(unix.SIGINT), false, true},
		{"SIGTERM", signal(unix.SIGTERM), false, true},
		{"SIGPIPE", signal(unix.SIGPIPE), false, true},
		{"SIGKILL", signal(unix.SIGKILL), true, true},
		{"SIGSEGV with a core", signal(unix.SIGSEGV | 0x80), true, true},
		{"unknown", sandbox.Exit{Unknown: true}, false, true},
	} {
		for _, r := range []struct {
			when Restart
			want bool
		}{{"", false}, {RestartNo, false}, {RestartOnFailure, test.onFailure}, {RestartAlways, test.always}} {
			if got := r.when.after(test.exit); got != r.want {
				t.Errorf("%q after %s: %v", r.when, test.name, got)
			}
		}
	}
}

func TestFiveEndsWithinAMinuteAreTooMany(t *testing.T) {
	now := time.Now()
	ago := func(seconds ...int) (ends []time.Time) {
		for _, s := range seconds {
			ends = append(ends, now.Add(-time.Duration(s)*time.Second))
		}
		return ends
	}
	for _, test := range []struct {
		ends []time.Time
		want bool
	}{
		{nil, false},
		{ago(3, 2, 1), false},
		{ago(59, 3, 2, 1), true},
		{ago(60, 3, 2, 1), false},
		{ago(90, 80, 70, 3, 2, 1), false},
		{ago(90, 80, 70, 4, 3, 2, 1), true},
	} {
		if got := endsTooOften(test.ends, now); got != test.want {
			t.Errorf("%v: %v", test.ends, got)
		}
	}
}
