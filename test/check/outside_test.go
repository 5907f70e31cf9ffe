package check

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// connectVariable makes the test binary connect a UNIX socket and then become its arguments.
const connectVariable = "CUCRIU_TEST_CONNECT"

// connectAndExec gets the network and the address of the socket in one string.
func connectAndExec(to string) {
	network, path, _ := strings.Cut(to, " ")
	kind := unix.SOCK_STREAM
	if network == "unixgram" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Dup2(fd, 9) // a shell uses the first ones
	}
	if err == nil {
		os.Unsetenv(connectVariable)
		err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	panic(err)
}

// listen makes a UNIX socket for datagrams and returns its path.
func listen(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return path
}

// listenStream makes a UNIX socket that waits for connections. accept accepts one.
func listenStream(t *testing.T) (path string, accept func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return path, func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
}

// senderTo returns a command that becomes its arguments, with a connection to the socket.
func senderTo(t *testing.T, host *testenv.Host, network, path string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/usr/bin/env", connectVariable + "=" + network + " " + path, self}
}

// TestAStreamToAProcessOutsideIsForetold: criu cannot dump half of a connection.
func TestAStreamToAProcessOutsideIsForetold(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		path, accept := listenStream(t)
		job := host.StartUnder(senderTo(t, host, "unix", path), 1)
		images := testenv.NewImages(t)
		for i := range 2 {
			// criu dumps a connection that is not accepted yet, and cannot restore it.
			found := testenv.Foretold(t, host, "dump", preflight.FindingUNIXSocket, "-t", job.Root(), "-D", images)
			if !strings.Contains(found.Message, path) {
				t.Errorf("the socket is not named: %v", found)
			}
			if i == 0 {
				accept()
			}
		}
		testenv.NotDumped(t, job, images)
	})
}

// TestASocketThatIsGoneIsForetold: the job sends to a socket that does not exist where it is
// restored.
func TestASocketThatIsGoneIsForetold(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		path := listen(t)
		job := host.StartUnder(senderTo(t, host, "unixgram", path), 1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		if found := testenv.Foretold(t, host, "restore", preflight.FindingUNIXSocket, "-D", images); !strings.Contains(found.Message, path) {
			t.Errorf("the socket is not named: %v", found)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

// writingInto starts a job that writes lines into a pipe which we read. Each line is noted in
// a file as well.
func writingInto(t *testing.T, host *testenv.Host, noted string) *testenv.Job {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	go func() { // the reader outside of the tree
		buffer := make([]byte, 1<<10)
		for {
			if _, err := reader.Read(buffer); err != nil {
				return
			}
		}
	}()
	job := host.StartWith(func(command []string) int {
		cmd := host.Command(command[0], command[1:]...)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		cmd.Stdin, cmd.Stdout, cmd.Dir, cmd.SysProcAttr = null, writer, "/", &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		writer.Close()
		go func() { _ = cmd.Wait() }()
		t.Cleanup(func() { testenv.KillGroup(cmd.Process.Pid) })
		return cmd.Process.Pid
	}, []string{"/bin/sh", "-c", `(while echo line; do printf . >>"$0"; sleep 0.02; done) & exec "$@"`, noted}, 1)
	return job
}

// TestAJobThatWritesIntoAPipeWritesWhereTheRestoreWrites: criu restores the pipe without its
// reader, and the job would die at its next write.
func TestAJobThatWritesIntoAPipeWritesWhereTheRestoreWrites(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		noted := filepath.Join(t.TempDir(), "noted")
		job := writingInto(t, host, noted)
		images := testenv.NewImages(t)
		warned := testenv.Check(t, host, "-t", job.Root(), "-D", images).Of(preflight.SeverityWarning)
		if len(warned) != 1 || warned[0].Name != preflight.FindingOutsidePipe || !strings.Contains(warned[0].Message, filepath.Base(os.Args[0])) {
			t.Errorf("want a warning about the pipe that names us: %+v", warned)
		}
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)

		written := filepath.Join(t.TempDir(), "written")
		file, err := os.Create(written)
		if err != nil {
			t.Fatal(err)
		}
		restore := host.CucriuCommand("restore", "-D", images)
		restore.Stdout = file
		if err := restore.Run(); err != nil {
			t.Fatal(err)
		}
		file.Close()
		writesOn(t, job, noted)
		if text, err := os.ReadFile(written); err != nil || !strings.Contains(string(text), "line\n") {
			t.Errorf("the job does not write where the restore wrote: %v\n%s", err, text)
		}
		again := testenv.NewImages(t) // a file is as good as any
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", again)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
	})
}

// TestARestoreWhoseOutputIsReadEnds although the job goes on, which wrote into a pipe.
func TestARestoreWhoseOutputIsReadEnds(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		noted := filepath.Join(t.TempDir(), "noted")
		job := writingInto(t, host, noted)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images) // waits until its output is at its end
		writesOn(t, job, noted)
	})
}

func writesOn(t *testing.T, job *testenv.Job, noted string) {
	t.Helper()
	size := func() int64 {
		info, err := os.Stat(noted)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	testenv.Eventually(t, testenv.Soon, "the job writes", func() bool { return size() > before+3 })
	job.Runs()
}

// TestARestoreWithoutATerminalIsForetold, of a job that has one.
func TestARestoreWithoutATerminalIsForetold(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		_, slave := testenv.NewTerminal(t)
		job := host.StartWith(func(command []string) int {
			cmd := host.Command(command[0], command[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Dir = slave, slave, slave, "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			go func() { _ = cmd.Wait() }()
			t.Cleanup(func() { testenv.KillGroup(cmd.Process.Pid) })
			return cmd.Process.Pid
		}, nil, 1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		testenv.Foretold(t, host, "restore", preflight.FindingTerminal, "-D", images)
		_, other := testenv.NewTerminal(t)
		restore := host.CucriuCommand("restore", "-D", images)
		restore.Stdin, restore.Stdout, restore.Stderr = other, other, other
		restore.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := restore.Run(); err != nil {
			t.Fatal(err)
		}
		job.Runs()

		images = testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		out := testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images)
		_, remedy, _ := strings.Cut(out, "or a new one: ") // script -qc 'cucriu restore --foreground …' /dev/null
		restore = host.Command("sh", "-c", strings.ReplaceAll(strings.TrimSpace(remedy), "…", "-D "+images))
		restore.Env = append(restore.Env, "PATH="+filepath.Dir(host.CucriuCommand().Path)+":"+os.Getenv("PATH"))
		if err := restore.Start(); err != nil {
			t.Fatal(err)
		}
		job.Runs()
		job.Kill()
		if err := restore.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestTheNetworkLockIsOneThatWorksHere: criu's default, or nftables, or none with a warning.
func TestTheNetworkLockIsOneThatWorksHere(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		testenv.NeedsTCP(t)
		host := testenv.NewHost(t, 1)
		job := startNeedy(t, host, `exec 5<>/dev/tcp/127.0.0.1/PORT; `)
		programs := func(does string) string {
			dir := t.TempDir()
			for _, name := range []string{"iptables", "iptables-restore"} {
				testenv.WriteFile(t, filepath.Join(dir, name), "#!/bin/sh\n"+does+"\n")
				if err := os.Chmod(filepath.Join(dir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			return dir
		}
		withoutNftables := testenv.Script(t, `case "$*" in *--feature*) exit 1;; esac; exec `+testenv.Criu(t)+` "$@"`)
		nftables := exec.Command(testenv.Criu(t), "check", "--feature", "network_lock_nftables").Run() == nil
		for _, test := range []struct {
			name, iptables, criu, lock string
		}{
			{"iptables that works", "exit 0", testenv.Criu(t), ""},
			{"iptables that does not work", "exit 4", testenv.Criu(t), "nftables"},
			{"neither", "exit 4", withoutNftables, "skip"},
			{"iptables that somebody has locked", `case "$*" in *"-S INPUT") exec sleep 1000; esac`, withoutNftables, ""},
		} {
			if test.lock == "nftables" && !nftables {
				test.lock = "skip"
			}
			host := host.For(t)
			host.Setenv("PATH", programs(test.iptables)+":"+os.Getenv("PATH"))
			var said preflight.Finding
			for _, f := range testenv.Check(t, host, "-t", job.Root(), "--criu", test.criu) {
				if f.Name == preflight.FindingOptions {
					said = f
				}
			}
			if has := strings.Contains(said.Message, "--network-lock "+test.lock); has != (test.lock != "") {
				t.Errorf("%s: want the lock %q: %v", test.name, test.lock, said)
			}
			if warned := said.Severity == preflight.SeverityWarning; warned != (test.lock == "skip") {
				t.Errorf("%s: %v", test.name, said)
			}
		}
		job.Runs()
	})
}
