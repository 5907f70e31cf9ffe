package dump

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestAHostileManifestIsRefusedBeforeAnythingIsCreated(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		images := host.Dump(job)
		path := filepath.Join(images, imagedir.ManifestName)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write := func(data []byte) error { return os.WriteFile(path, data, 0o600) }
		change := func(change func(*imagedir.Manifest)) func() error {
			return func() error {
				var m imagedir.Manifest
				err := json.Unmarshal(good, &m)
				change(&m)
				data, marshalErr := json.Marshal(m)
				return errors.Join(err, marshalErr, write(data))
			}
		}
		outside := "which is not in criu's images"
		for _, test := range []struct {
			name string
			put  func() error
			want string
		}{
			{"a FIFO", func() error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
			{"a directory", func() error { return os.Mkdir(path, 0o700) }, "is a directory"},
			{"a link", func() error {
				return errors.Join(os.WriteFile(path+".real", good, 0o600), os.Symlink(path+".real", path))
			}, "symbolic links"},
			{"cut off", func() error { return write(good[:len(good)/2]) }, "damaged"},
			{"empty", func() error { return write(nil) }, "damaged"},
			{"the process 1", change(func(m *imagedir.Manifest) { m.Processes[0].PID = 1 }), outside},
			{"this process", change(func(m *imagedir.Manifest) { m.Processes[0].PID = os.Getpid() }), outside},
			{"another root", change(func(m *imagedir.Manifest) { m.RootPID = os.Getpid() }), outside},
			{"ten thousand processes", change(func(m *imagedir.Manifest) {
				for i := range 10000 {
					p := m.Processes[0]
					p.PID = 100000 + i
					m.Processes = append(m.Processes, p)
				}
			}), outside},
			{"a petabyte", change(func(m *imagedir.Manifest) {
				for uuid := range m.Processes[0].MemoryBytes {
					m.Processes[0].MemoryBytes[uuid] = 1 << 50
				}
			}), "MiB free"},
			{"more than there is", change(func(m *imagedir.Manifest) {
				for uuid := range m.Processes[0].MemoryBytes {
					m.Processes[0].MemoryBytes[uuid] = 1<<64 - 1
				}
			}), "damaged"},
			{"another driver", change(func(m *imagedir.Manifest) { m.DriverVersion = "1.2" }), "must be the same version"},
			{"a line of its own", change(func(m *imagedir.Manifest) { m.DriverVersion = "1.2\nError" }), "damaged"},
		} {
			if err := errors.Join(os.RemoveAll(path), test.put()); err != nil {
				t.Fatal(err)
			}
			run := host.TryRestore(images)
			if run.Err == nil || job.Alive() {
				t.Fatalf("%s: restored", test.name)
			}
			if n := strings.Count(run.Log, "Error (cucriu-hook): "); n != 1 || !strings.Contains(run.Log, test.want) {
				t.Errorf("%s: %d errors, want one with %q\n%s", test.name, n, test.want, run.Lines())
			}
			if strings.Contains(run.Log, "Error (cucriu-hook): manifest") && strings.Contains(run.Log, "/proc/") && !strings.Contains(run.Log, path) {
				t.Errorf("%s: the error does not name %s\n%s", test.name, path, run.Lines())
			}
			if strings.Contains(run.Log, "Forking task") {
				t.Errorf("%s: criu created a process", test.name)
			}
			if got := host.RestoreOutcome(); got != "" || host.Sessions()[len(host.Sessions())-1].Kind != journal.KindDump {
				t.Errorf("%s: a restore session was made", test.name)
			}
		}
		if err := errors.Join(os.RemoveAll(path), write(good)); err != nil {
			t.Fatal(err)
		}
		host.Restore(images)
		job.Runs()
	})
}

// TestAMadeUpEnvironmentTouchesNobody starts the hook from a program that is not criu, with
// the name of a running job.
func TestAMadeUpEnvironmentTouchesNobody(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1)
		// A shell takes the place of criu. It is younger than the job and has an empty
		// folder open.
		const ancestor = "/proc/$$/fd/9"
		shell := fmt.Sprintf(`exec 9<%s; export CRTOOLS_IMAGE_DIR="%%s"; %s; exit $?`, t.TempDir(), host.HookBin)
		for _, test := range [][3]string{
			{"", "", ""},
			{"", ancestor, job.Root()},
			{"pre-dump", "", job.Root()},
			{"pre-dump", "/tmp", job.Root()},
			{"pre-dump", "/proc/self/fd/3", job.Root()},
			{"pre-dump", "/proc/" + job.Root() + "/fd/3", job.Root()},
			{"pre-dump", "/proc/4194304999/fd/3", job.Root()},
			{"pre-dump", ancestor, ""},
			{"pre-dump", ancestor, "-1"},
			{"pre-dump", ancestor, "0"},
			{"pre-dump", ancestor, job.Root() + " "},
			{"pre-dump", ancestor, "99999999999999999999"},
			{"pre-dump", ancestor, "4194304"},
			{"pre-restore", "/proc/1/fd/999999", ""},
			{"pre-resume", ancestor, job.Root()},
			{"post-resume", ancestor, job.Root()},
			{"post-restore", ancestor, job.Root()},
			{"post-resume", "", job.Root()},
		} {
			hook := host.Command("/bin/sh", "-c", fmt.Sprintf(shell, test[1]))
			hook.Env = append(hook.Env, "CRTOOLS_SCRIPT_ACTION="+test[0], "CRTOOLS_INIT_PID="+test[2])
			var stderr strings.Builder
			hook.Stderr = &stderr
			var exit *exec.ExitError
			if err := hook.Run(); !errors.As(err, &exit) || !exit.Exited() {
				t.Errorf("%q: %v, want an exit status that is not 0", test, err)
			}
			prefix := "Error (cucriu-hook): "
			if test[0] == "" {
				prefix = "cucriu-hook: error: "
			}
			if text := strings.TrimSpace(stderr.String()); strings.Count(text, "\n") != 0 || !strings.HasPrefix(text, prefix) {
				t.Errorf("%q: not one line: %s", test, text)
			}
		}
		if sessions := host.Sessions(); len(sessions) != 0 {
			t.Errorf("sessions were made: %+v", sessions)
		}
		job.Runs() // not killed, not stopped, not traced
	})
}

func TestOfTwoDumpsAtOnceOneSucceeds(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--spin", "stream-sync")
		dirs := []string{t.TempDir(), t.TempDir()}
		var runs [2]*exec.Cmd
		for i := range runs {
			runs[i] = host.CriuCommand("dump", dirs[i], "-t", job.Root())
			if err := runs[i].Start(); err != nil {
				t.Fatal(err)
			}
		}
		winner, dumped := "", 0
		for i, run := range runs {
			if run.Wait() == nil {
				winner, dumped = dirs[i], dumped+1
			}
		}
		if dumped != 1 {
			for _, dir := range dirs {
				log, _ := os.ReadFile(filepath.Join(dir, "dump.log"))
				t.Log(testenv.CriuRun{Log: string(log)}.Lines())
			}
			t.Fatalf("%d of two dumps succeeded, want one", dumped)
		}
		testenv.Eventually(t, testenv.Soon, "the dumped job is gone", job.Gone)
		host.Restore(winner)
		job.Runs()
	})
}

// TestASessionWhosePidsNameOthersNow: start times show that pids were reused, or were
// written into the run directory by hand.
func TestASessionWhosePidsNameOthersNow(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		runs, stopped := host.Start(1), host.Start(1)
		stopped.Signal(unix.SIGSTOP)
		testenv.Eventually(t, testenv.Soon, "the job stops", stopped.Stopped)
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			t.Fatal(err)
		}
		gpus, err := host.Driver().HostGPUs()
		if err != nil {
			t.Fatal(err)
		}
		other := func(job *testenv.Job) proc.Ident { return proc.Ident{PID: job.PID, StartTime: 1} }
		root := other(runs)
		members := []journal.Member{{Process: inspect.Process{Ident: other(runs)}}, {Process: inspect.Process{Ident: other(stopped)}}}
		sessions := map[string]any{"damaged": "nonsense"}
		for _, s := range []*journal.Record{
			{Kind: journal.KindDump, Step: "dumped"},
			{Kind: journal.KindDump, Step: "checkpoint"},
			{Kind: journal.KindRestore, Step: "pre-resume"},
			{Kind: journal.KindRestore, Step: "post-resume"},
			{Kind: journal.KindSuspend, Step: "resume"},
			{Kind: journal.KindSuspend, Step: "suspended"},
		} {
			s.BootID, s.Created, s.Criu, s.Members, s.Root = strings.TrimSpace(string(boot)), time.Now(), other(runs), members, &root
			if s.Kind == journal.KindRestore {
				s.Manifest = &imagedir.Manifest{Version: 1, DriverVersion: "1", RootPID: 1}
				s.Manifest.Processes = []imagedir.Process{{PID: 1, GPUs: gpus}}
			}
			sessions[fmt.Sprintf("%s-%s", s.Kind, s.Step)] = s
		}
		for name, s := range sessions {
			dir := filepath.Join(host.RunDir, "sessions", name)
			data, err := json.Marshal(s)
			if err := errors.Join(err, os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "session.json"), data, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		out, err := host.Cucriu("recover")
		if err == nil || strings.Count(out, "cucriu: error:") != 1 || !strings.Contains(out, "session damaged: ") {
			t.Errorf("cucriu recover says of the damaged session alone that it cannot: %v\n%s", err, out)
		}
		for _, s := range host.Sessions() {
			if s.Outcome == "" || s.Outcome == journal.OutcomeRunning {
				t.Errorf("%s at %s: outcome %q of processes that are not there", s.Kind, s.Step, s.Outcome)
			}
		}
		if !stopped.Stopped() {
			t.Error("a process with a pid of the session was continued")
		}
		runs.Runs()
		stopped.Signal(unix.SIGCONT)
		stopped.Runs()
	})
}

// TestARunDirectoryThatOthersCanWriteIsRefused, and the job runs on.
func TestARunDirectoryThatOthersCanWriteIsRefused(t *testing.T) {
	testenv.Parallel(t)
	for name, spoil := range map[string]func(dir string) error{
		"writable":        func(dir string) error { return errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o777)) },
		"another-users":   func(dir string) error { return errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, 12345, 12345)) },
		"a-symbolic-link": func(dir string) error { return errors.Join(os.Mkdir(dir+".real", 0o700), os.Symlink(dir+".real", dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1)
				if err := spoil(host.RunDir); err != nil {
					t.Fatal(err)
				}
				if run := host.TryDump(job, t.TempDir()); run.Err == nil || !strings.Contains(run.Log, "run directory") {
					t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
				}
				for _, args := range [][]string{{"suspend", "-p", job.Root()}, {"recover"}} {
					if out, err := host.Cucriu(args...); err == nil || !strings.Contains(out, "run directory") {
						t.Fatalf("cucriu %s: %v\n%s", args[0], err, out)
					}
				}
				job.Runs()
			})
		})
	}
}
