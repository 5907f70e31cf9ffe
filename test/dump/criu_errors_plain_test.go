package dump

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cucriu/criuutil"
	"cucriu/internal/testenv"
)

// cucriu dump and restore find some errors of criu's beforehand. Plain criu through the hook does
// not, and its log is read all the same.

// logSays fails the test unless what matters in a log of criu, and what to do about it, are as
// they should be.
func logSays(t *testing.T, log, cause, remedy string) {
	t.Helper()
	failure := criuutil.ReadFailure(strings.NewReader(log))
	if !strings.Contains(failure.Cause, cause) || !strings.Contains(failure.Remedy, remedy) {
		t.Errorf("the log is read as %q, with the remedy %q, want %q and %q\n%s", failure.Cause, failure.Remedy, cause, remedy, log)
	}
}

func TestPlainCriusErrorsAboutAnImageSayWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job, "--leave-running")
		restore := func(t *testing.T, dir string) string {
			t.Helper()
			run := host.For(t).TryRestore(dir)
			if run.Err == nil {
				t.Fatal("it is restored")
			}
			return run.Log
		}
		t.Run("its pid is taken", func(t *testing.T) {
			logSays(t, restore(t, images), "refused, nothing was touched: pid-taken: process "+job.Root(), "")
		})
		job.Runs()
		t.Run("empty directory", func(t *testing.T) {
			logSays(t, restore(t, testenv.NewImages(t)), "empty-image", "does not hold a complete criu image")
		})
		t.Run("something else in the place of an image", func(t *testing.T) {
			damaged := filepath.Join(t.TempDir(), "images")
			testenv.Copy(t, images, damaged)
			testenv.WriteFile(t, filepath.Join(damaged, "pstree.img"), strings.Repeat("x", 100))
			logSays(t, restore(t, damaged), "doesn't match", "does not hold a complete criu image")
		})
		job.Kill()
		t.Run("no pages", func(t *testing.T) {
			cut := filepath.Join(t.TempDir(), "images")
			testenv.Copy(t, images, cut)
			if err := os.Remove(filepath.Join(cut, "pages-1.img")); err != nil {
				t.Fatal(err)
			}
			logSays(t, restore(t, cut), "pages", "does not hold a complete criu image")
		})
		host.Restore(images)
		job.Runs()
	})
}

// TestCriusErrorAboutAFileThatHasChangedSaysWhatToDo: a job's log file, for example, that somebody
// has cut off.
func TestCriusErrorAboutAFileThatHasChangedSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		file := filepath.Join(t.TempDir(), "file")
		testenv.WriteFile(t, file, "12345")
		job := inShell(t, host, "exec 3<"+file)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.WriteFile(t, file, "123")
		config := filepath.Join(t.TempDir(), "criu.conf") // it may say something about files, so criu alone looks at them
		testenv.WriteFile(t, config, "")
		criuFails(t, host, testenv.StatusFailed, "has bad size 3 (expect 5)", "has changed since the dump", "restore", "-D", images, "--criu-config", config)
		testenv.WriteFile(t, file, "54321")
		testenv.Exits(t, host, 0, "restore", "-D", images)
	})
}

func TestPlainCriusErrorAboutItselfSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir := testenv.NewImages(t)
		criu := host.CriuCommand("dump", dir)
		cmd := host.Command("/bin/sh", append([]string{"-c", `"$@" -t $$; true`, "sh"}, criu.Args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		log, err := os.ReadFile(filepath.Join(dir, "dump.log"))
		if err != nil {
			t.Fatal(err)
		}
		logSays(t, string(log), "within dumped tree", "run the command from outside the job")
	})
}

// connects is a program that connects to a UNIX socket, or listens at a TCP port and accepts
// nobody.
const connects = `use IO::Socket::UNIX; use IO::Socket::INET; use Socket;
my ($what, $where, $dir) = @ARGV;
my $s = $what eq "unix" ? IO::Socket::UNIX->new(Peer => $where, Type => SOCK_STREAM)
	: IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => $where, ReuseAddr => 1);
$s or die "$!"; open my $ready, ">", "$dir/ready" or die; close $ready; sleep 1000 while 1`

func TestCriusErrorAboutASocketToTheOutsideSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		at, dir := filepath.Join(t.TempDir(), "socket"), t.TempDir()
		server := exec.CommandContext(t.Context(), "/usr/bin/perl", "-e", `use IO::Socket::UNIX; use Socket;
my $l = IO::Socket::UNIX->new(Local => $ARGV[0], Type => SOCK_STREAM, Listen => 5) or die;
open my $listens, ">", "$ARGV[0].listens" or die; my $s = $l->accept; sleep 1000 while 1`, at)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
		testenv.Eventually(t, testenv.Soon, "somebody listens", func() bool { return testenv.Exists(at + ".listens") })
		job := shell(t, host, dir, "/usr/bin/perl", "-e", connects, "unix", at, dir)
		criuFails(t, host, testenv.StatusFailed, "unix: ", "--ext-unix-sk", "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
		if !job.Alive() {
			t.Fatal("the job is gone")
		}
	})
}

func TestCriusErrorAboutAClientThatConnectsSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		testenv.NeedsTCP(t)
		host := testenv.NewHost(t, 1)
		port, dir := testenv.FreePort(t), t.TempDir()
		job := shell(t, host, dir, "/usr/bin/perl", "-e", connects, "tcp", port, dir)
		client := exec.CommandContext(t.Context(), "/usr/bin/perl", "-e", `use IO::Socket::INET; $| = 1;
my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $ARGV[0]) or die; print "connected"; sleep 1000 while 1`, port)
		out, err := client.StdoutPipe()
		if err == nil {
			err = client.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 1))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Process.Kill(); _ = client.Wait() })
		criuFails(t, host, testenv.StatusFailed, "In-flight connection", "--skip-in-flight", "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
		if !job.Alive() {
			t.Fatal("the job is gone")
		}
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--no-auto", "--skip-in-flight")
	})
}

// leads starts a program as the leader of a session, with a pid of the caller's choice: with /proc/sys/kernel/ns_last_pid
// any other fork could come first.
const leads = `use POSIX (); my $want = shift; my $tid = pack "l", $want;
my $args = pack "Q11", 0, 0, 0, 0, POSIX::SIGCHLD(), 0, 0, 0, unpack("Q", pack "P", $tid), 1, 0;
my $pid = syscall 435, $args, length $args; # clone3
$pid >= 0 or die "clone3: $!"; if (!$pid) { POSIX::setsid(); exec @ARGV or POSIX::_exit(1) } waitpid $pid, 0; exit $? >> 8`

// TestCriusErrorAboutTheShellsNumbersSaysWhatToDo: a shell job is restored into a session that has
// the number that a process of the image had.
func TestCriusErrorAboutTheShellsNumbersSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		dir, images := t.TempDir(), testenv.NewImages(t)
		shell(t, host, dir, "/bin/sh", "-c", `sleep 1000 & echo $! >"$0/pid" && mv "$0/pid" "$0/ready" && wait`, dir)
		data, err := os.ReadFile(filepath.Join(dir, "ready"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		job := testenv.JobOf(t, pid)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "-j")
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		// The leader of the session gets the job's pid, starts criu and ends.
		criu := host.CriuCommand("restore", images, "-d", "-j")
		cmd := host.Command("/usr/bin/perl", append([]string{
			"-e", leads, job.Root(), "/bin/sh", "-c",
			`echo $$ >"$0/leader"; { while kill -0 ` + job.Root() + ` 2>/dev/null; do sleep 0.1; done; "$@" >/dev/null 2>&1; : >"$0/over"; } &`, images,
		}, criu.Args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		testenv.Eventually(t, testenv.Soon, "criu is over", func() bool { return testenv.Exists(filepath.Join(images, "over")) })
		leader, _ := os.ReadFile(filepath.Join(images, "leader"))
		log, err := os.ReadFile(filepath.Join(images, "restore.log"))
		if err != nil || strings.TrimSpace(string(leader)) != job.Root() {
			t.Fatalf("the leader of the session is %s, want %d: %v", leader, pid, err)
		}
		logSays(t, string(log), "intersects with", "restore from another session")
	})
}
