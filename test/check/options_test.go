package check

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cucriu/hooks/image"
	"cucriu/internal/testenv"
)

// TestTheOptionsThatATreeNeedsAreFound, set for the dump, and recorded for the restore,
// which needs none by hand.
func TestTheOptionsThatATreeNeedsAreFound(t *testing.T) {
	testenv.Parallel(t)
	const ghost = `exec 3>ghost; rm ghost; head -c 3000000 /dev/urandom >&3; `
	const lock = `exec 4>locked; flock -x 4; `
	const tcp = `exec 5<>/dev/tcp/127.0.0.1/PORT; `
	const removed = `echo a >name; ln name other; exec 6<name; rm name; `
	for name, test := range map[string]struct {
		script  string // what the root of the tree does before it runs cudawork as its child
		options []string
	}{
		"nothing":           {"", nil},
		"a file lock":       {lock, []string{"--file-locks"}},
		"a large ghost":     {ghost, []string{"--ghost-limit 3M"}},
		"a TCP connection":  {tcp, []string{"--tcp-established"}},
		"a removed name":    {removed, []string{"--link-remap"}},
		"a UNIX socket":     {"SOCKET", []string{"--ext-unix-sk"}},
		"several things":    {ghost + lock + removed + tcp + "SOCKET", []string{"--file-locks", "--ghost-limit 3M", "--link-remap", "--tcp-established", "--ext-unix-sk"}},
		"another's session": {inSession, []string{"--shell-job"}},
		"a small ghost":     {`exec 3>ghost; rm ghost; head -c 1000 /dev/urandom >&3; `, nil},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				if strings.Contains(test.script, "PORT") {
					testenv.NeedsTCP(t)
				}
				host := testenv.NewHost(t, 1)
				job := startNeedy(t, host, test.script)
				images := testenv.NewImages(t)
				out := testenv.Exits(t, host, 0, "check", "-t", job.Root(), "-D", images)
				for _, option := range test.options {
					if !strings.Contains(out, option) {
						t.Errorf("cucriu check does not name %s:\n%s", option, out)
					}
				}
				for _, option := range []string{"--shell-job", "--tcp-established", "--ghost-limit", "--link-remap", "--ext-unix-sk", "--network-lock skip"} { // the simulated driver locks files at times
					if strings.Contains(out, option) && !strings.Contains(strings.Join(test.options, " "), option) {
						t.Errorf("cucriu check names %s without need:\n%s", option, out)
					}
				}
				if len(test.options) > 0 {
					testenv.Exits(t, host, testenv.StatusFailed, "dump", "-t", job.Root(), "-D", images, "--no-auto")
				}
				out = testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
				for _, option := range test.options {
					if option == "--link-remap" {
						option = "name (deleted)" // the name that takes its place
					}
					if !strings.Contains(out, option) {
						t.Errorf("cucriu dump does not name %s:\n%s", option, out)
					}
				}
				if _, err := image.ReadOptions(images); err != nil {
					t.Error(err)
				}
				testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
				testenv.Exits(t, host, 0, "restore", "-D", images)
				job.Runs()
			})
		})
	}
}

// inSession stands for a job whose session's leader, a shell, is not in the tree.
const inSession = "in-session"

// startNeedy starts a job below a shell that has something open.
func startNeedy(t *testing.T, host *testenv.Host, script string) *testenv.Job {
	t.Helper()
	dir := t.TempDir()
	if script == inSession {
		job := host.StartUnder([]string{"/bin/bash", "-c", "exec 2>/dev/null; \"$@\" & echo $! >" + dir + "/pid; wait", "bash"}, 1)
		testenv.Eventually(t, testenv.Soon, "the shell tells the pid", func() bool {
			job.PID = testenv.ReadPID(filepath.Join(dir, "pid"))
			return job.PID != 0
		})
		return job
	}
	if strings.Contains(script, "PORT") {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close() // it stays open until then, whenever garbage is collected
			}
		}()
		script = strings.ReplaceAll(script, "PORT", strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	}
	var parent []string
	if strings.Contains(script, "SOCKET") {
		script = strings.ReplaceAll(script, "SOCKET", "")
		parent = senderTo(t, host, "unixgram", listen(t))
	}
	return host.StartUnder(append(parent, "/bin/bash", "-c", "cd "+dir+"; "+script+`"$@" & wait`, "bash"), 1)
}

// TestRecordedOptionsThatAreDamagedAreRefused, before criu is started.
func TestRecordedOptionsThatAreDamagedAreRefused(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := testenv.NewImages(t)
		testenv.Exits(t, host, 0, "dump", "-t", job.Root(), "-D", images)
		for _, text := range []string{"{", `{"network_lock": "iptables; rm -rf /"}`} {
			testenv.WriteFile(t, filepath.Join(images, image.OptionsName), text)
			testenv.Exits(t, host, testenv.StatusRefused, "restore", "-D", images)
		}
		if err := os.Remove(filepath.Join(images, image.OptionsName)); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
		testenv.Exits(t, host, 0, "restore", "-D", images)
		job.Runs()
	})
}

// TestANameRemovedDuringTheDumpIsGivenToo: the tree runs until it is stopped.
func TestANameRemovedDuringTheDumpIsGivenToo(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		for _, fails := range []bool{true, false} {
			host, dir := testenv.NewHost(t, 1), t.TempDir()
			job := startNeedy(t, host, "(cd "+dir+"; until [ -e go ]; do sleep 0.05; done; exec 6>removed; ln removed kept; rm removed; echo >done; exec sleep 1000) & ")
			point := "dump.lock=run " + testenv.Script(t, "cd "+dir+" && touch go && until [ -e done ]; do sleep 0.05; done")
			status, given := 0, filepath.Join(dir, "removed (deleted)")
			if fails {
				point += ",dump.manifest=error"
				status = testenv.StatusFailed
			}
			host.UseFailpoint(point)
			images := testenv.NewImages(t)
			testenv.Exits(t, host, status, "dump", "-t", job.Root(), "-D", images)
			if _, err := os.Lstat(given); errors.Is(err, os.ErrNotExist) != fails {
				t.Errorf("after a dump that fails (%v), %s: %v", fails, given, err)
			}
			if !fails {
				host.UseFailpoint("")
				testenv.Eventually(t, testenv.Soon, "the job is gone", job.Gone)
				testenv.Exits(t, host, 0, "restore", "-D", images)
			}
			job.Runs()
			job.Kill()
		}
	})
}

// TestAFileInUseByARemovedNameGetsANewOne, which a failed dump takes away again. The image
// can be restored more than once, also that of a job that was left running.
func TestAFileInUseByARemovedNameGetsANewOne(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := startNeedy(t, host, `exec 6>removed; ln removed kept; rm removed; `)
		open, err := os.Readlink(filepath.Join("/proc", job.Root(), "fd", "6"))
		if err != nil {
			t.Fatal(err)
		}
		out := testenv.Exits(t, host, 0, "check", "-t", job.Root())
		if !strings.Contains(out, "--link-remap") || !strings.Contains(out, strings.TrimSuffix(open, " (deleted)")) {
			t.Errorf("cucriu check does not say what plain criu needs:\n%s", out)
		}
		host.UseFailpoint("dump.manifest=error")
		testenv.Exits(t, host, testenv.StatusFailed, "dump", "-t", job.Root(), "-D", testenv.NewImages(t))
		host.UseFailpoint("")
		if _, err := os.Lstat(open); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the dump failed, and %s is still there (%v)", open, err)
		}
		job.Runs()
		images := testenv.DumpAndLeave(t, host, job, "-R")
		job.Runs()
		job.Kill()
		for range 2 {
			testenv.Exits(t, host, 0, "restore", "-D", images)
			job.Runs()
			job.Kill()
		}
	})
}
