package dump

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// waiter waits in one call, and says how that ended. It has a handler for SIGUSR1.
const waiter = `my ($dir, $name, @call) = @ARGV; @call = map { /^-?\d+$/ ? $_ + 0 : eval $_ } @call; $SIG{USR1} = sub {};
sub note { my ($of, $what) = @_; open my $f, '>', "$dir/$name.tmp"; print $f $what; close $f; rename "$dir/$name.tmp", "$dir/$name.$of" }
note pid => $$; my $r = syscall(shift @call, @call); note end => "$r $!"; sleep 1000 while 1`

// TestWaitsGoOn: what waits in the kernel without end, or until a point in time, waits on after a dump that leaves it running,
// and after a restore. criu alone has such calls fail with EINTR, of which tail -f ends. A signal that the program handles
// ends them, even if it comes when the job is about to go on.
func TestWaitsGoOn(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("elsewhere these calls fail with EINTR: docs/limits.md")
	}
	calls := map[string][]string{ // poll, futex, pause, rt_sigsuspend
		"poll":       {"7", "0", "0", "-1"},
		"futex":      {"202", `pack("l", 5)`, "393", "5", `pack("qq", time + 36000, 0)`, "0", "-1"},
		"pause":      {"34"},
		"sigsuspend": {"130", `pack("q", 0)`, "8"},
	}
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := t.TempDir()
		log := filepath.Join(dir, "log")
		testenv.WriteFile(t, log, "first\n")
		script := fmt.Sprintf("tail -n +1 -f %s >%s/tail & ", log, dir)
		for _, kind := range []string{"", "signalled-", "restored-"} {
			for name, call := range calls {
				script += fmt.Sprintf("perl -e '%s' %s %s '%s' & ", strings.ReplaceAll(waiter, "'", `'\''`), dir, kind+name, strings.Join(call, "' '"))
			}
		}
		job := host.StartUnder([]string{"/bin/bash", "-c", script + `"$@" & wait`, "sh"}, 1)
		read := func(name string) string {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			return string(text)
		}
		waits := func(name string) bool {
			pid, err := strconv.Atoi(read(name + ".pid"))
			call, waits := proc.WaitsIn(pid, pid)
			return err == nil && waits && strconv.FormatInt(call.Number, 10) == calls[name[strings.LastIndex(name, "-")+1:]][0]
		}
		line := 0
		goesOn := func(after string, kinds ...string) {
			t.Helper()
			line++
			file, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(file, "line", line)
			file.Close()
			testenv.Eventually(t, testenv.Soon, "tail -f goes on "+after, func() bool { return strings.Contains(read("tail"), fmt.Sprintln("line", line)) })
			for _, kind := range kinds {
				for name := range calls {
					testenv.Eventually(t, testenv.Soon, kind+name+" waits "+after, func() bool { return waits(kind+name) || read(kind+name+".end") != "" })
					if end := read(kind + name + ".end"); end != "" {
						t.Errorf("%s%s ended %s: %s", kind, name, after, end)
					}
				}
			}
			job.Runs()
		}
		signalled := func(kind string) {
			t.Helper()
			for name := range calls {
				testenv.Eventually(t, testenv.Soon, kind+name+" has had its signal", func() bool { return read(kind+name+".end") == "-1 Interrupted system call" })
			}
		}
		signals := func(kind string) string {
			return "=run " + testenv.Script(t, fmt.Sprintf("for i in %s/%s*.pid; do kill -USR1 $(cat $i); done", dir, kind))
		}
		goesOn("before", "", "signalled-", "restored-")
		host.Dump(job, "--leave-running")
		host.WaitOutcome("running")
		goesOn("after a dump", "", "signalled-", "restored-")

		host.UseFailpoint("dump.back.others" + signals("signalled-"))
		host.Dump(job, "--leave-running")
		host.WaitOutcome("running")
		signalled("signalled-")
		goesOn("after a dump", "", "restored-")

		host.UseFailpoint("restore.back.others" + signals("restored-"))
		host.Restore(host.Dump(job))
		signalled("restored-")
		goesOn("after a restore", "")
	})
}
