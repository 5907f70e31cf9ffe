// Package cli tests the command line. Each script in testdata/script runs the real cucriu
// on a simulated host, and real criu if there is a dump.
package cli

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

var update = flag.Bool("update", false, "write what the commands print into the scripts")

func TestMain(m *testing.M) {
	testenv.Main(m)
}

func TestCommandsDoWhatTheirScriptsSay(t *testing.T) {
	testenv.Parallel(t)
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("scripts: %v %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) { run(t, file) })
		})
	}
}

// run runs one script on a host of its own with two GPUs.
func run(t *testing.T, file string) {
	host := testenv.NewHost(t, 2)
	s := &script{host: host, jobs: make(map[string]*testenv.Job)}
	bin := filepath.Dir(testenv.Artefact(t, "make build", "bin", "cucriu"))
	testscript.Run(t, testscript.Params{
		Files:               []string{file},
		RequireExplicitExec: true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			for _, variable := range host.Env {
				if !slices.Contains(os.Environ(), variable) { // a variable of the simulated host
					env.Vars = append(env.Vars, variable)
				}
			}
			env.Setenv("PATH", bin+":"+os.Getenv("PATH"))
			for i, uuid := range host.UUIDs() {
				env.Setenv("GPU"+string(rune('0'+i)), uuid)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"job": s.job, "runs": s.runs, "stopped": s.stopped, "signal": s.signal,
			"dump": s.dump, "restore": s.restore, "json": s.json, "faults": s.faults, "on": s.on,
			"exits": s.exits, "gone": s.gone,
		},
	})
}

// script holds what the commands of one script have started.
type script struct {
	host *testenv.Host
	jobs map[string]*testenv.Job
}

// job NAME [ARG...] starts a workload. From then on $NAME is its pid.
func (s *script) job(ts *testscript.TestScript, _ bool, args []string) {
	job := s.host.Start(1, args[1:]...)
	s.jobs[args[0]] = job
	ts.Setenv(args[0], job.Root())
}

// runs NAME waits until the job goes on with its memory intact.
func (s *script) runs(_ *testscript.TestScript, _ bool, args []string) { s.jobs[args[0]].Runs() }

// stopped NAME succeeds if every thread of the job is stopped.
func (s *script) stopped(ts *testscript.TestScript, neg bool, args []string) {
	if s.jobs[args[0]].Stopped() == neg {
		ts.Fatalf("stopped: %v", neg)
	}
}

// signal NAME SIGNAL sends a signal and waits for its effect.
func (s *script) signal(ts *testscript.TestScript, _ bool, args []string) {
	job := s.jobs[args[0]]
	signal := unix.SignalNum(args[1])
	job.Signal(signal)
	switch signal {
	case unix.SIGSTOP:
		s.eventually(ts, job.Stopped)
	case unix.SIGKILL:
		s.eventually(ts, job.Gone)
	}
}

// gone NAME waits until the pid of a job that was ended is free.
func (s *script) gone(ts *testscript.TestScript, _ bool, args []string) {
	s.eventually(ts, s.jobs[args[0]].Gone)
}

// dump NAME DIR dumps a job with criu, which ends it; restore DIR restores it.
func (s *script) dump(ts *testscript.TestScript, neg bool, args []string) {
	run := s.host.TryDump(s.jobs[args[0]], ts.MkAbs(args[1]))
	s.ended(ts, neg, run)
	if !neg {
		s.gone(ts, false, args)
	}
}

func (s *script) restore(ts *testscript.TestScript, neg bool, args []string) {
	s.ended(ts, neg, s.host.TryRestore(ts.MkAbs(args[0]), args[1:]...))
}

func (s *script) ended(ts *testscript.TestScript, neg bool, run testenv.CriuRun) {
	if (run.Err != nil) != neg {
		ts.Fatalf("criu: %v\n%s", run.Err, run.Lines())
	}
}

// json [KEY...] fails unless stdout is a JSON object in which none of these keys is null,
// or, without keys, a JSON list.
func (s *script) json(ts *testscript.TestScript, _ bool, keys []string) {
	data := []byte(ts.ReadFile("stdout"))
	if len(keys) == 0 {
		var list []any
		if err := json.Unmarshal(data, &list); err != nil || list == nil {
			ts.Fatalf("not a JSON list: %v\n%s", err, data)
		}
		return
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		ts.Fatalf("not a JSON object: %v\n%s", err, data)
	}
	for _, key := range keys {
		if object[key] == nil {
			ts.Fatalf("no %q in\n%s", key, data)
		}
	}
}

// exits STATUS PROGRAM [ARG...] fails unless the program ends with the status. Its output
// is available as after exec.
func (s *script) exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// faults [RULE...] sets the simulated driver's fault rules.
func (s *script) faults(_ *testscript.TestScript, _ bool, rules []string) { s.host.Faults(rules...) }

// on NAME GPU waits until the job works on that GPU.
func (s *script) on(ts *testscript.TestScript, _ bool, args []string) {
	s.eventually(ts, func() bool {
		status, err := s.jobs[args[0]].Status(0)
		return err == nil && slices.ContainsFunc(status.GPUs, func(gpu struct {
			UUID string `json:"uuid"`
			PCI  string `json:"pci"`
		},
		) bool {
			return gpu.UUID == args[1]
		})
	})
}

func (s *script) eventually(ts *testscript.TestScript, condition func() bool) {
	testenv.Eventually(s.host.T(), testenv.Soon, "the job gets there", condition)
}
