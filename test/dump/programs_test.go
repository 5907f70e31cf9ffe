package dump

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// programVariable names the folder in which [runProgram] reports.
const programVariable = "CUCRIU_TEST_PROGRAM"

// runProgram is a program without CUDA that never ends. Its goroutines compute and are
// preempted by signals, pass on numbers, sleep, send themselves signals, and read a
// periodic timer. Each round in which all of them have done something is counted in the
// file go. Anything unexpected is written to the file wrong.
func runProgram(dir string) {
	wrong := func(format string, args ...any) {
		_ = os.WriteFile(filepath.Join(dir, "wrong"), fmt.Appendf(nil, format, args...), 0o600)
		os.Exit(1)
	}
	must := func(err error) {
		if err != nil {
			wrong("%v", err)
		}
	}
	numbers, sums, expired := make(chan int), make(chan struct{}), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			numbers <- n
		}
	}()
	go func() {
		for ; ; sums <- struct{}{} {
			sum := 0
			for i := range 20_000_000 {
				sum += i & 1
			}
			if sum != 10_000_000 {
				wrong("the sum is %d", sum)
			}
		}
	}()
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC)
	must(err)
	period := unix.Timespec{Nsec: int64(5 * time.Millisecond)}
	must(unix.TimerfdSettime(timer, 0, &unix.ItimerSpec{Interval: period, Value: period}, nil))
	go func() {
		for ; ; expired <- struct{}{} {
			var ticks [8]byte
			_, err := unix.Read(timer, ticks[:])
			for err == unix.EINTR {
				_, err = unix.Read(timer, ticks[:])
			}
			must(err)
			if binary.NativeEndian.Uint64(ticks[:]) == 0 {
				wrong("the timer was read before it expired")
			}
		}
	}()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1)
	ticker := time.NewTicker(time.Millisecond)
	for round := 1; ; round++ {
		if n := <-numbers; n != round-1 {
			wrong("got number %d in round %d", n, round)
		}
		must(unix.Kill(os.Getpid(), unix.SIGUSR1))
		<-signals
		<-sums
		<-expired
		<-ticker.C
		before := time.Now()
		time.Sleep(5 * time.Millisecond)
		if slept := time.Since(before); slept < 5*time.Millisecond {
			wrong("a sleep ended after %v", slept)
		}
		report := filepath.Join(dir, "go")
		must(os.WriteFile(report+".tmp", []byte(strconv.Itoa(round)), 0o600))
		must(os.Rename(report+".tmp", report))
	}
}

// perlProgram does the same in an interpreter: a pipe to a child, an interval timer, a
// signal to itself, children that end. It sleeps until its time is up, however often it is
// interrupted.
const perlProgram = `
use strict; use IO::Handle; use POSIX (); use Errno 'EINTR'; use Time::HiRes qw(setitimer ITIMER_REAL time sleep);
my $dir = shift; my ($alarms, $usr1, $n) = (0, 0, 0);
sub wrong { open my $f, '>', "$dir/wrong"; print $f "perl: @_"; close $f; exit 1 }
sub again { my ($call) = @_; my $r; do { $r = $call->() } while $r < 0 && $! == EINTR; $r }
pipe my $r1, my $w1; pipe my $r2, my $w2; $_->autoflush(1) for $w1, $w2;
my $echo = fork // wrong "fork: $!";
if (!$echo) { close $w1; close $r2; while (<$r1>) { print $w2 $_ } exit 0 }
$SIG{ALRM} = sub { $alarms++ }; $SIG{USR1} = sub { $usr1++ };
setitimer(ITIMER_REAL, 0.01, 0.01);
for (;;) {
	$n++;
	print $w1 "$n\n"; my $line = <$r2>; $line eq "$n\n" or wrong "sent $n, got $line";
	kill USR1 => $$; select undef, undef, undef, 0.001 while $usr1 < $n;
	$usr1 == $n or wrong "$usr1 signals in round $n";
	my $child = fork // wrong "fork: $!"; POSIX::_exit(5) if !$child;
	again(sub { waitpid $child, 0 }) == $child && $? >> 8 == 5 or wrong "child $child: $?, $!";
	my $seen = $alarms; select undef, undef, undef, 0.001 while $alarms == $seen;
	open my $f, '>', "$dir/perl.tmp" or wrong $!; print $f $n; close $f; rename "$dir/perl.tmp", "$dir/perl";
}`

// TestProgramsBesideCUDAGoOnAsIfNothingHadBeen: the processes of the tree that do not use
// CUDA are parked with the others, whatever they are doing, for longer than the periods of
// their timers.
func TestProgramsBesideCUDAGoOnAsIfNothingHadBeen(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		host.Faults("checkpoint delay 50ms")
		dir := t.TempDir()
		perl := filepath.Join(dir, "program.pl")
		testenv.WriteFile(t, perl, perlProgram)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		job := host.StartUnder([]string{"/bin/sh", "-c", programVariable + `=$1 "$0" & perl "$2" "$1" & shift 2; "$@" & wait`, self, dir, perl}, 1)
		rounds := func(program string) int {
			data, _ := os.ReadFile(filepath.Join(dir, program))
			n, _ := strconv.Atoi(string(data))
			return n
		}
		goOn := func() {
			t.Helper()
			for _, program := range []string{"go", "perl"} {
				before := rounds(program)
				testenv.Eventually(t, testenv.Soon, "the rounds of "+program, func() bool { return rounds(program) > before+5 })
			}
			if wrong, err := os.ReadFile(filepath.Join(dir, "wrong")); err == nil {
				t.Fatal(string(wrong))
			}
			job.Runs()
		}
		goOn()
		for range 3 {
			host.Dump(job, "--leave-running")
			host.WaitOutcome("running")
			goOn()
		}
		fails := testenv.Script(t, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]`)
		failed := host.CriuCommandScripts("dump", t.TempDir(), []string{host.HookBin, fails}, "-t", job.Root())
		if err := failed.Run(); err == nil {
			t.Fatal("criu dump succeeded although a script failed")
		}
		host.WaitOutcome("running")
		goOn()
		for range 2 {
			host.Restore(host.Dump(job))
			goOn()
		}
	})
}
