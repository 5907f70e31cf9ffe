package dump

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/proc"
	"cucriu/internal/testenv"
)

// TestWaitsGoOn: what waits in the kernel for a time, or without end, waits on after a dump that leaves it running, and after
// a restore. criu alone has such calls fail with EINTR, of which tail -f ends.
func TestWaitsGoOn(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("elsewhere these calls fail with EINTR: docs/limits.md")
	}
	// Each waits in one call, whose end it reports.
	const waiter = `my ($dir, $name, @call) = @ARGV; @call = map { /^\d+$|^-1$/ ? $_ + 0 : eval $_ } @call;
open my $f, '>', "$dir/$name.pid"; print $f $$; close $f;
my $r = syscall(shift @call, @call); open $f, '>', "$dir/wrong"; print $f "$name ended: $r, $!"; close $f; sleep 1000 while 1`
	const poll, nanosleep, futex, clockNanosleep = "7", "35", "202", "230"
	calls := map[string][]string{
		"endless":   {poll, "0", "0", "-1"},
		"poll":      {poll, "0", "0", "3600000"},
		"nanosleep": {nanosleep, `pack("qq", 3600, 0)`, "0"},
		"clock":     {clockNanosleep, "1", "0", `pack("qq", 3600, 0)`, "0"},
		"futex":     {futex, `pack("l", 5)`, "393", "5", `pack("qq", time + 3600, 0)`, "0", "-1"},
	}
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := t.TempDir()
		log := filepath.Join(dir, "log")
		testenv.WriteFile(t, log, "first\n")
		script := []string{fmt.Sprintf("tail -n +1 -f %s >%s/tail & ", log, dir)}
		for name, call := range calls {
			script = append(script, fmt.Sprintf("perl -e '%s' %s %s", strings.ReplaceAll(waiter, "'", `'\''`), dir, name))
			for _, argument := range call {
				script = append(script, fmt.Sprintf(" '%s'", argument))
			}
			script = append(script, " & ")
		}
		job := host.StartUnder([]string{"/bin/bash", "-c", strings.Join(script, "") + `"$@" & wait`, "sh"}, 1)
		pids := make(map[string]int)
		left := func(name string) int64 { // milliseconds
			call, waits := proc.WaitsIn(pids[name], pids[name])
			if !waits || fmt.Sprint(call.Number) != poll {
				return -1
			}
			return int64(call.Arguments[2])
		}
		for name, call := range calls {
			testenv.Eventually(t, testenv.Soon, name+" waits", func() bool {
				text, _ := os.ReadFile(filepath.Join(dir, name+".pid"))
				pid, err := strconv.Atoi(string(text))
				if err != nil {
					return false
				}
				pids[name] = pid
				in, waits := proc.WaitsIn(pid, pid)
				return waits && fmt.Sprint(in.Number) == call[0]
			})
		}
		line := 0
		goOn := func(after string, most int64) {
			t.Helper()
			line++
			file, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(file, "line", line)
			file.Close()
			testenv.Eventually(t, testenv.Soon, "tail -f goes on "+after, func() bool {
				text, _ := os.ReadFile(filepath.Join(dir, "tail"))
				return strings.Contains(string(text), fmt.Sprintln("line", line))
			})
			for _, name := range []string{"poll", "nanosleep", "clock"} {
				testenv.Eventually(t, testenv.Soon, name+" waits on "+after, func() bool { return left(name) > 0 && left(name) < most })
			}
			job.Runs()
			if wrong, err := os.ReadFile(filepath.Join(dir, "wrong")); err == nil {
				t.Fatalf("%s: %s", after, wrong)
			}
		}
		host.Dump(job, "--leave-running")
		host.WaitOutcome("running")
		goOn("after a dump", 3600_000)
		before := left("clock")
		host.Restore(host.Dump(job))
		goOn("after a restore", before)
	})
}
