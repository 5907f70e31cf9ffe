package dump

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cucriu/internal/testenv"
)

// criuFails runs a dump or restore that criu itself fails, and fails the test unless the error
// begins with what matters and says what to do.
func criuFails(t *testing.T, host *testenv.Host, status int, cause, remedy string, args ...string) string {
	t.Helper()
	if args[0] == "dump" {
		args = append(args, "--no-auto") // else the option that criu misses would be found
	}
	out := testenv.Exits(t, host, status, args...)
	_, message, found := strings.Cut(out, "cucriu: error: ")
	lines := strings.Split(message, "\n")
	if !found || len(lines) < 2 || !strings.HasPrefix(lines[0], "criu failed: ") || !strings.Contains(lines[0], cause) {
		t.Errorf("the error does not begin with criu's %q:\n%s", cause, out)
		return out
	}
	if !strings.HasPrefix(lines[1], "what to do: ") || !strings.Contains(lines[1], remedy) {
		t.Errorf("the second line does not advise %q:\n%s", remedy, out)
	}
	outcome := map[string]string{"dump": "\nthe job keeps running\n", "restore": "\nthis restore has left nothing running, and the image is unchanged\n"}[args[0]]
	if status == testenv.StatusFailed && !strings.HasSuffix(out, outcome) {
		t.Errorf("the error does not end with what became of the job, %q:\n%s", outcome, out)
	}
	_, log, _ := strings.Cut(message, "its log: ")
	log, _, _ = strings.Cut(log, "\n")
	if _, err := os.Stat(log); err != nil {
		t.Errorf("the log that is named: %v\n%s", err, out)
	}
	return out
}

// shell starts a program without CUDA: a script that ends with making the file ready.
func shell(t *testing.T, host *testenv.Host, dir string, command ...string) *testenv.Job {
	t.Helper()
	job := testenv.JobOf(t, host.Spawn(dir, command[0], command[1:]...))
	testenv.Eventually(t, testenv.Soon, "the program is ready", func() bool { return testenv.Exists(filepath.Join(dir, "ready")) })
	return job
}

// inShell starts a shell script in a folder, and then sleeps.
func inShell(t *testing.T, host *testenv.Host, script string) *testenv.Job {
	t.Helper()
	dir := t.TempDir()
	return shell(t, host, dir, "/bin/sh", "-c", `cd "$0" && `+script+` && cd / && : >"$0/ready" && exec sleep 1000`, dir)
}

func TestCriusErrorAboutATerminalSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		_, slave := testenv.NewTerminal(t)
		pid := sleepOn(t, host, slave, &syscall.SysProcAttr{Setsid: true, Setctty: true})
		criuFails(t, host, testenv.StatusFailed, "tty", "give -j (--shell-job)", "dump", "-t", pid, "-D", testenv.NewImages(t))
		testenv.Exits(t, host, 0, "dump", "-t", pid, "-D", testenv.NewImages(t), "-j")
	})
}

// TestCriusOwnHintIsOnALineOfItsOwn: criu prints it to its standard output, where our progress
// may be in the middle of a line.
func TestCriusOwnHintIsOnALineOfItsOwn(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		master, slave := testenv.NewTerminal(t)
		sleepOn(t, host, slave, &syscall.SysProcAttr{Setsid: true, Setctty: true})
		pid := sleepOn(t, host, master, &syscall.SysProcAttr{Setsid: true})
		out := criuFails(t, host, testenv.StatusFailed, "tty: Found dangling tty", "give -j (--shell-job)", "dump", "-t", pid, "-D", testenv.NewImages(t))
		if hint := "Task attached to shell terminal."; strings.Count(out, hint) != 1 || !strings.Contains(out, "\ncriu says: "+hint) {
			t.Errorf("criu's own hint is not once on a line of its own:\n%s", out)
		}
	})
}

func TestCriusErrorsAboutASessionOfOthersSayWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		t.Run("in the same pid namespace", func(t *testing.T) {
			dir := t.TempDir()
			shell(t, host.For(t), dir, "/bin/sh", "-c", `sleep 1000 & echo $! >"$0/pid" && mv "$0/pid" "$0/ready" && wait`, dir)
			data, err := os.ReadFile(filepath.Join(dir, "ready"))
			if err != nil {
				t.Fatal(err)
			}
			pid := strings.TrimSpace(string(data))
			criuFails(t, host.For(t), testenv.StatusFailed, "not a session leader", "give -j (--shell-job)", "dump", "-t", pid, "-D", testenv.NewImages(t))
			testenv.Exits(t, host.For(t), 0, "dump", "-t", pid, "-D", testenv.NewImages(t), "-j")
		})
		t.Run("outside of it", func(t *testing.T) {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			criuFails(t, host.For(t), testenv.StatusFailed, "session leader", "with setsid", "dump", "-t", sleepOn(t, host, null, nil), "-D", testenv.NewImages(t))
			testenv.Exits(t, host.For(t), 0, "dump", "-t", sleepOn(t, host, null, &syscall.SysProcAttr{Setsid: true}), "-D", testenv.NewImages(t))
		})
	})
}

// TestCriusErrorAboutItsMountPointSaysWhatToDo: a criu that was killed has left it.
func TestCriusErrorAboutItsMountPointSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		dir := t.TempDir()
		left := filepath.Join(dir, "proc.crtools")
		if err := os.Mkdir(left, 0o700); err != nil {
			t.Fatal(err)
		}
		pid := sleepIn(t, host, dir, null, &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID})
		criuFails(t, host, testenv.StatusFailed, "Can't create a directory", "proc.crtools", "dump", "-t", pid, "-D", testenv.NewImages(t))
		if err := os.Remove(left); err != nil {
			t.Fatal(err)
		}
		testenv.Exits(t, host, 0, "dump", "-t", pid, "-D", testenv.NewImages(t))
	})
}

// sleepOn starts a program with these standard streams, and returns its pid.
func sleepOn(t *testing.T, host *testenv.Host, streams *os.File, how *syscall.SysProcAttr) string {
	t.Helper()
	return sleepIn(t, host, "/", streams, how)
}

func sleepIn(t *testing.T, host *testenv.Host, dir string, streams *os.File, how *syscall.SysProcAttr) string {
	t.Helper()
	cmd := host.Command("/bin/sleep", "1000")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.SysProcAttr = streams, streams, streams, dir, how
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return strconv.Itoa(cmd.Process.Pid)
}

func TestCriusErrorsAboutFilesSayWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		for _, test := range []struct{ name, script, cause, remedy, option string }{
			{"removed, with another name", "exec 3<>file && ln file other && rm file", "link remap", "give --link-remap", "--link-remap"},
			{"removed and large", "dd if=/dev/zero of=file bs=1M count=3 2>/dev/null && exec 3<>file && rm file", "ghost file", "give --ghost-limit 4M", "--ghost-limit=4M"},
			{"on a mount that is gone", "mkdir m && mount -t tmpfs none m && exec 3>m/file && umount -l m", "Can't lookup mount=", "its mount namespace cannot reach", ""},
			{"locked", "exec 3>file && flock 3", "file locks", "give -l (--file-locks)", "-l"},
		} {
			t.Run(test.name, func(t *testing.T) {
				job := inShell(t, host.For(t), test.script)
				criuFails(t, host.For(t), testenv.StatusFailed, test.cause, test.remedy, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--force", "unsupported-file")
				if !job.Alive() {
					t.Fatal("the job is gone")
				}
				if test.option != "" {
					testenv.Exits(t, host.For(t), 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), test.option)
				}
			})
		}
	})
}

// connected is a program that is connected to itself.
const connected = `use IO::Socket::INET;
my $l = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $l->sockport) or die; my $s = $l->accept or die;
open my $ready, ">", "$ARGV[0]/ready" or die; close $ready; sleep 1000 while 1`

func TestCriusErrorsAboutConnectionsSayWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		testenv.NeedsTCP(t)
		host := testenv.NewHost(t, 1)
		dir := t.TempDir()
		job := shell(t, host, dir, "/usr/bin/perl", "-e", connected, dir)
		criuFails(t, host, testenv.StatusFailed, "Connected TCP socket", "give --tcp-established", "dump", "-t", job.Root(), "-D", testenv.NewImages(t))

		// An iptables that fails takes the place of the system's, if there is one.
		tools := t.TempDir()
		for _, name := range []string{"iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy", "iptables-restore", "ip6tables-restore"} {
			if err := os.WriteFile(filepath.Join(tools, name), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		host.Setenv("PATH", tools+":"+os.Getenv("PATH"))
		criuFails(t, host, testenv.StatusFailed, "", "try another --network-lock", "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--tcp-established", "--network-lock", "iptables")
		if !job.Alive() {
			t.Fatal("the job is gone")
		}
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--tcp-established", "--network-lock", "skip")
	})
}

func TestCriusErrorAboutControlGroupsSaysWhatToDo(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		testenv.MountCgroups(t, 2)
		host := testenv.NewHost(t, 1)
		job := inShell(t, host, ":")
		group, err := os.MkdirTemp("/sys/fs/cgroup", "cucriu-test-") // every pid namespace has this pid
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { job.Kill(); _ = os.Remove(group) })
		testenv.WriteFile(t, filepath.Join(group, "cgroup.procs"), job.Root())
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "--manage-cgroups=soft")
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		criuFails(t, host, testenv.StatusRefused, "cg: ", "--manage-cgroups=ignore", "restore", "-D", images, "--manage-cgroups=strict")
		testenv.Exits(t, host, 0, "restore", "-D", images, "--manage-cgroups=soft")
	})
}

// TestAHarmlessErrorIsNotTheOneThatIsShown: without CAP_SYS_RESOURCE criu's first error is one
// about its own limits, and it answers with that one.
func TestAHarmlessErrorIsNotTheOneThatIsShown(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := inShell(t, host, "exec 3>file && flock 3")
		cmd := host.CucriuCommand("dump", "-t", job.Root(), "-D", testenv.NewImages(t), "--no-auto")
		cmd.Args = append([]string{"sh", "-c", `ulimit -n 1024 && exec setpriv --bounding-set -sys_resource --inh-caps -sys_resource -- "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "cucriu: error: criu failed: Some file locks are hold") || strings.Contains(string(out), "RLIMIT") {
			t.Errorf("not the error that matters: %v\n%s", err, out)
		}
		logs, _ := filepath.Glob(filepath.Join(host.RunDir, "logs", "*", "dump.log"))
		if len(logs) != 1 {
			t.Fatalf("logs of criu: %v", logs)
		}
		if log, err := os.ReadFile(logs[0]); err != nil || !strings.Contains(string(log), "RLIMIT_NOFILE") {
			t.Errorf("criu did not log its harmless error: %v\n%s", err, log)
		}
	})
}

// TestStatusKeepsWhyCriuFailed, with paths that exist.
func TestStatusKeepsWhyCriuFailed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		lock := filepath.Join(t.TempDir(), "lock")
		job := host.StartUnder([]string{"/bin/sh", "-c", `exec 3>"$0"; flock 3; "$@" 3>&- & exec sleep 1000`, lock}, 1)
		images := testenv.NewImages(t)
		kept := func(cause string) {
			t.Helper()
			status := testenv.Exits(t, host, 0, "status")
			_, message, _ := strings.Cut(status, "; the cause: "+cause)
			_, log, found := strings.Cut(message, "(criu's log: ")
			log, _, _ = strings.Cut(log, ")")
			if _, err := os.Stat(log); !found || err != nil {
				t.Errorf("cucriu status does not say %q with a log that exists: %v\n%s", cause, err, status)
			}
			if strings.Contains(status, images+".partial") {
				t.Errorf("cucriu status names an image that is not there:\n%s", status)
			}
		}
		criuFails(t, host, testenv.StatusFailed, "Some file locks are hold", "give -l (--file-locks)", "dump", "-t", job.Root(), "-D", images)
		testenv.NotDumped(t, job, images)
		kept("Some file locks are hold")

		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images, "-R", "-l")
		host.WaitOutcome("running")
		if status := testenv.Exits(t, host, 0, "status"); !strings.Contains(status, "dumped the processes into "+images+" ") {
			t.Errorf("cucriu status does not say where the image is:\n%s", status)
		}
		job.Runs()
	})
}
