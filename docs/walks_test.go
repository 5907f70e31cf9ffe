package docs

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cucriu/internal/testenv"
)

// A step is what becomes of one command line of a page: it is run here, run by something else, or only
// parsed. A step with a section is for all lines of that section.
type step struct {
	line, section string
	by            string   // the tests or scripts that run it
	only          string   // why it is run by nothing
	with          []string // what stands in the line, and in its place
	before        string   // run first, because the page takes it for granted
	after         string   // repeated until it succeeds
	background    bool
}

const (
	secondHost = "a second host"
	itself     = "this is the test suite" // or would start it
)

// walks has the steps of each page in their order.
var walks = map[string][]step{
	"README.md": {
		{line: "make demo", by: "scripts/try-fresh.sh"},
		{line: "make test", only: itself},
		{line: "criu dump -t 27297 -D images --action-script cucriu-hook", by: "scripts/demo.sh"},
		{line: "criu restore -d -D images --action-script cucriu-hook", by: "scripts/demo.sh"},
		{line: "make package && apt install ./build/package/*.deb", by: "scripts/try-fresh.sh"},
		{line: "cucriu check -t PID"},
		{line: "cucriu dump -t PID -D images"},
		{line: "cucriu restore -D images"},
		{line: "cucriu run --dir /shared/jobs/train --every 30m -- python train.py", background: true, after: "cucriu jobs list | grep -q running"},
		{line: "cucriu migrate -t PID --to gpu-b", by: "TestThereAndBack"},
		{line: "cucriu run --dir DIR COMMAND", with: []string{"DIR", "jobs/true"}},
		{line: "cucriu jobs list"},
		{line: "cucriu migrate -t PID --to HOST", by: "TestThereAndBack"},
		{line: "cucriu dump -t PID -D DIR"},
		{line: "cucriu restore -D DIR"},
		{line: "cucriu check [-t PID] [-D DIR]", with: []string{"DIR", "another"}},
		{line: "cucriu status"},
		{line: "cucriu recover"},
		{line: "cucriu inspect DIR"},
		{line: "cucriu verify DIR"},
		{line: "cucriu map -D DIR"},
		{line: "cucriu gpus [-p PID]"},
		{line: "cucriu state -p PID"},
		{line: "cucriu suspend -p PID"},
		{line: "cucriu resume -p PID"},
		{line: "cucriu lock -p PID"},
		{line: "cucriu unlock -p PID"},
		{line: "cucriu version"},
		{line: "cucriu completion SHELL"},
	},
	"start.md": {
		{line: "cucriu check"},
		{line: "cucriu run --no-checkpoints --pidfile job.pid -- python train.py &"},
		{line: "cucriu status"},
		{line: "cucriu check -t $(cat job.pid) -D images"},
		{line: "cucriu dump -t $(cat job.pid) -D images"},
		{line: "cucriu inspect images"},
		{line: "cucriu check -D images"},
		{line: "cucriu map -D images"},
		{line: "cucriu restore -D images"},
		{line: "cucriu suspend -p $(cat job.pid)"},
		{line: "cucriu resume -p $(cat job.pid) --map 0=1"},
		{line: "mkdir images-2"},
		{line: "criu dump -t $(cat job.pid) -D images-2 --shell-job --action-script /usr/libexec/cucriu/cucriu-hook"},
		{line: "criu restore -D images-2 --shell-job --action-script /usr/libexec/cucriu/cucriu-hook -d"},
		{line: "cucriu status"},
		{line: "cucriu recover"},
	},
	"fault-matrix.md": {
		{section: "What becomes of the job when something fails", by: "TestNoFaultAtAnyStepLosesTheJob"},
	},
	"limits.md": {
		{line: "cucriu check"},
		{line: "cucriu check -t PID -D DIR"},
		{line: "cucriu check -D DIR", before: "cucriu dump -t PID -D DIR"},
		{line: "cucriu run --dir /shared/jobs/train -- torchrun …"},
		{line: "criu check", only: "cucriu check runs it"},
		{line: "cucriu resume -p PID", before: "cucriu restore -D DIR && cucriu suspend -p PID"},
		{line: "cucriu map -D DIR"},
	},
	"long-jobs.md": {
		{line: "cucriu run --dir /shared/jobs/train --every 30m -- python train.py", background: true, after: "cucriu jobs list | grep -q running"},
		{line: "cucriu jobs list"},
		{line: "cucriu jobs show train", before: "cucriu jobs checkpoint train"},
		{line: "cucriu jobs checkpoint train"},
		{line: "cucriu jobs verify train"},
		{line: "cucriu jobs pause train"},
		{line: "cucriu jobs resume train"},
		{line: "cucriu jobs stop train"},
		{line: "cucriu run --dir /shared/jobs/train --every 30m --adopt 4711", with: []string{"4711", "PID", "/train", "/adopted"}, background: true, after: "cucriu jobs list | grep -q 'adopted.* running'"},
		{line: "cucriu migrate --job train --to gpu-b", by: "TestALongJobMovesThereAndBack"},
		{line: `cucriu migrate --job train --to gpu-b --start "systemctl start cucriu-job@train"`, only: secondHost + " with systemd"},
		{line: "cucriu recover", by: "TestALongJobAndANetworkThatIsCut"},
		{line: "cucriu recover --take ID", by: "TestAPersonDecidesAboutALongJob"},
	},
	"images.md": {
		{
			line: "CUDA_VISIBLE_DEVICES=0 cucriu run --dir /shared/jobs/server -- python serve.py", with: []string{"serve.py", "train.py"}, background: true,
			after: "cucriu jobs list | grep -q 'server.* running'",
		},
		{line: "cucriu jobs checkpoint server"},
		{
			line: "CUDA_VISIBLE_DEVICES=0 cucriu run --dir /shared/jobs/a --image /shared/jobs/server --publish 8001:8000",
			with: []string{"8001", "0"}, background: true, after: "cucriu jobs list | grep -q '^a .* running'",
		},
		{
			line: "CUDA_VISIBLE_DEVICES=1 cucriu run --dir /shared/jobs/b --image /shared/jobs/server --publish 8002:8000",
			with: []string{"8002", "0"}, background: true, after: "cucriu jobs list | grep -q '^b .* running'",
		},
	},
	"migration.md": {
		{line: "cucriu migrate -t PID --to gpu-b --dry-run", by: "TestTheOptionsOfAMigration"},
		{line: "cucriu migrate -t PID --to gpu-b", by: "TestThereAndBack"},
	},
	"troubleshooting.md": {
		{line: "cucriu recover"},
		{line: "cucriu status"},
		{line: "runc checkpoint", only: "it names what failed"},
		{line: "cucriu status"},
		{line: "cucriu check -D DIR", before: "cucriu dump -t PID -D DIR"},
		{line: "cucriu map -D DIR"},
		{line: "criu cannot dump another user's processes without CAP_SYS_RESOURCE", only: "it is a message"},
		{line: "cucriu jobs verify DIR", by: "TestCommandsDoWhatTheirScriptsSay"},
	},
	"containers.md": {
		{section: "What both hosts need", by: "TestAContainerMovesAsThePageSays"},
		{section: "1. Check, while it runs", by: "TestAContainerMovesAsThePageSays"},
		{section: "2. Checkpoint", by: "TestAContainerMovesAsThePageSays"},
		{section: "3. Send and check", by: "TestAContainerMovesAsThePageSays"},
		{section: "4. Restore there", by: "TestAContainerMovesAsThePageSays"},
		{section: "5. Clean up", by: "TestAContainerMovesAsThePageSays"},
		{section: "If it fails there", by: "TestAContainerThatCannotGoThereGoesOnHere"},
		{section: "With Podman", by: "scripts/try-engines.sh"},
		{section: "Engines", by: "scripts/try-engines.sh"},
		{section: "Run cucriu from a container", by: "scripts/try-engines.sh"},
	},
	"schedulers.md": {
		{section: "systemd", by: "scripts/try-systemd.sh"},
		{section: "Slurm", by: "scripts/try-slurm.sh"},
		{section: "HTCondor", by: "scripts/try-htcondor.sh"},
	},
	"development.md": {
		{section: "Build and test", only: itself},
		{section: "On a machine with a GPU", only: "real GPUs"},
	},
	"measured.md": {
		{section: "Measure it yourself", only: "it takes long"},
	},
	"programs.md": {
		{section: "Go packages", only: "it changes a module; TestExamplesCompile compiles the programs"},
	},
}

// walker types the lines of a page, one after the other, into a shell of a simulated host with two GPUs.
type walker struct {
	*testing.T
	host *testenv.Host
	dir  string // where it types
	job  *testenv.Job
}

// TestTheLinesOfEachPageWork runs what the table does not leave to others.
func TestTheLinesOfEachPageWork(t *testing.T) {
	testenv.Parallel(t)
	for page, steps := range walks {
		steps = slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.by+s.only != "" })
		if len(steps) == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(page, ".md"), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := newWalker(t)
				for _, s := range steps {
					w.do(s)
				}
				if w.job != nil && w.job.Alive() {
					w.job.Check()
				}
			})
		})
	}
}

func newWalker(t *testing.T) *walker {
	t.Helper()
	w := &walker{T: t, host: testenv.NewHost(t, 2), dir: filepath.Join(t.TempDir(), "work")}
	bin := t.TempDir()
	if err := errors.Join(os.MkdirAll(w.dir+"/jobs", 0o700), os.Symlink(testenv.Criu(t), filepath.Join(bin, "criu"))); err != nil {
		t.Fatal(err)
	}
	w.host.Setenv("PATH", strings.Join([]string{filepath.Dir(w.host.HookBin), bin, os.Getenv("PATH")}, ":"))
	return w
}

// do types the line of a step, and waits for what the next one relies on.
func (w *walker) do(s step) {
	w.Helper()
	if s.before != "" {
		w.enter(s.before, false)
	}
	for _, line := range variants(strings.NewReplacer(s.with...).Replace(s.line)) {
		w.enter(line, s.background)
	}
	if s.after != "" {
		testenv.Eventually(w, testenv.Soon, s.after, func() bool { return w.shell(s.after).Run() == nil })
	}
}

// enter runs a line. One that starts the page's job returns when that works.
func (w *walker) enter(line string, background bool) {
	w.Helper()
	if strings.Contains(line, "PID") && w.job == nil {
		w.job = w.host.Start(1, "--mib", "8")
	}
	stands := []string{
		"DIR", "image", "SHELL", "bash", "COMMAND", "true", "torchrun …", "true",
		"/shared/jobs/", w.dir + "/jobs/", "/usr/libexec/cucriu/cucriu-hook", w.host.HookBin,
	}
	if w.job != nil {
		stands = append(stands, "PID", w.job.Root())
	}
	line = strings.NewReplacer(stands...).Replace(line)
	before, after, starts := strings.Cut(line, "python train.py")
	if starts {
		pidFile := filepath.Join(w.dir, "job.pid")
		job := w.host.StartWith(func(command []string) int {
			w.run(before+strings.Join(command, " ")+after, background)
			if strings.Contains(before, "--pidfile") {
				testenv.Eventually(w, testenv.Soon, "the job has started", func() bool { return testenv.ReadPID(pidFile) != 0 })
			}
			return testenv.ReadPID(pidFile)
		}, nil, 1, "--mib", "8")
		if job.PID != 0 {
			w.job = job
		}
		return
	}
	w.run(line, background)
	last := strings.Fields(line[strings.LastIndex(line, "&")+1:])
	switch {
	case len(last) < 2 || w.job == nil:
	case last[1] == "dump":
		testenv.Eventually(w, testenv.Soon, "the job has ended", w.job.Gone)
	case slices.Contains([]string{"restore", "resume", "unlock"}, last[1]):
		w.job.WaitTicks(1)
	}
}

func (w *walker) shell(line string) *exec.Cmd {
	cmd := w.host.Command("bash", "-c", line)
	cmd.Dir = w.dir
	return cmd
}

// run runs a line of shell, and fails the test if that fails. What the line leaves running keeps its output.
func (w *walker) run(line string, background bool) {
	w.Helper()
	output, err := os.CreateTemp(w.TempDir(), "output")
	if err != nil {
		w.Fatal(err)
	}
	defer output.Close()
	cmd := w.shell(line)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	if background {
		go func() { _ = cmd.Wait() }()
		w.Cleanup(func() {
			if text, _ := os.ReadFile(output.Name()); w.Failed() {
				w.Logf("$ %s\n%s", line, text)
			}
		})
		return
	}
	err = cmd.Wait()
	text, _ := os.ReadFile(output.Name())
	w.Logf("$ %s (%.1f s)\n%s", line, time.Since(began).Seconds(), text)
	if err != nil {
		w.Fatal(err)
	}
}
