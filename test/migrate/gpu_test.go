package migrate

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// eachHasOne are two hosts with one of the machine's GPUs each. On a machine without sshd they
// reach each other by the rig's own remote shell.
var eachHasOne = hosts.Options{WithoutSSH: true, A: hosts.HostOptions{Real: []int{0}}, B: hosts.HostOptions{Real: []int{1}}}

func realPair(t *testing.T, o hosts.Options) *hosts.Pair {
	t.Helper()
	if !testenv.RealDriver() {
		t.Skip("needs two GPUs: make gpu-bundle")
	}
	return hosts.New(t, o)
}

func TestOnGPUsThereAndBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := realPair(t, eachHasOne)
		w := p.A.Start(1, "--mib", "64", "--loaders", "2")
		watch := w.Watch()
		for range 2 {
			show(t, "64 MiB", move(t, w, p.A, p.B, "--precopy=never", "--rsh", p.A.RSH()))
			show(t, "64 MiB", move(t, w, p.B, p.A, "--rsh", p.B.RSH()))
		}
		watch.Stop()
	})
}

// TestOnGPUsTraining: a training goes back and forth, and computes what it computes elsewhere.
func TestOnGPUsTraining(t *testing.T) {
	all := hosts.Options{WithoutSSH: true}
	for name, training := range map[string]struct {
		hosts    hosts.Options
		settings []string // of the environment
		command  string
		lines    int
	}{
		"one process": {eachHasOne, nil, "python3 %s/train.py --workers 2 --epochs 2 --batches 200 --pause 0.05", 400},
		"two ranks over NVLink": {all, []string{
			"LD_PRELOAD=" + testenv.Guest(t), "NCCL_CUMEM_HOST_ENABLE=0", "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo",
		}, "torchrun --nproc-per-node 2 --master-addr 127.0.0.1 %s/ranks.py --steps 400", 800},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.IsolatedFor(t, 200*time.Second, func(t *testing.T) {
				p := realPair(t, training.hosts)
				command := "exec env " + strings.Join(training.settings, " ") + " " + fmt.Sprintf(training.command, filepath.Join(testenv.Root(t), "test/workload/programs"))
				want, err := p.B.Command(t.Context(), "sh", "-c", command).Output() // before, because both listen on the same ports
				if err != nil {
					t.Fatal(err)
				}
				w := p.A.StartProgram("cucriu", "run", "--no-checkpoints", "--pidfile", "/tmp/training.pid", "--", "sh", "-c", `exec >"$1/log" 2>&1; `+command, "sh") // torchrun has no io_uring then
				testenv.Eventually(t, testenv.Soon, "the training has begun", func() bool {
					pid, _ := os.ReadFile(p.A.Path("/tmp/training.pid"))
					w.PID, err = strconv.Atoi(strings.TrimSpace(string(pid)))
					return err == nil
				})
				output := func(on *hosts.Host) string {
					data, _ := os.ReadFile(on.Path(filepath.Join(w.Dir, "log")))
					return string(data)
				}
				steps := func(on *hosts.Host) int { return strings.Count(output(on), "step ") }
				from, to := p.A, p.B
				for _, flags := range [][]string{{"--precopy=never"}, {"--precopy=never"}, {"--precopy"}, {"--precopy"}} {
					before := steps(from)
					testenv.Eventually(t, testenv.Soon, "the training goes on", func() bool { return steps(from) >= before+30 })
					w.Host = from
					w.Prepare(to)
					show(t, strings.Join(append([]string{name}, flags...), " "), migrate(t, w, from, to, append(flags, "--rsh", from.RSH())...))
					from, to = to, from
				}
				testenv.Eventually(t, 2*time.Minute, "the training ends", func() bool { return strings.Contains(output(from), "done") })
				got, expected := stepsOf(output(from)), stepsOf(string(want))
				if !slices.Equal(got, expected) || len(got) != training.lines {
					t.Fatalf("the training that moved computed something else: %d lines, not moved %d", len(got), len(expected))
				}
				figure(t, "%s: %d lines, 4 migrations, identical", name, training.lines)
			})
		})
	}
}

// stepsOf returns the lines of a training's output that say what it computed. Ranks write them in no order.
func stepsOf(output string) []string {
	lines := slices.DeleteFunc(strings.Split(output, "\n"), func(line string) bool { return !strings.HasPrefix(line, "step ") })
	slices.Sort(lines)
	return lines
}

// TestOnGPUsAJobFromAnImage goes there and back, with its files and its port. One GPU will do for both hosts.
func TestOnGPUsAJobFromAnImage(t *testing.T) {
	testenv.IsolatedFor(t, 200*time.Second, func(t *testing.T) {
		one := hosts.HostOptions{Real: []int{0}}
		p := realPair(t, hosts.Options{WithoutSSH: true, OneBootID: true, A: one, B: one})
		j := startFromImage(t, original(t, p, p.A), p.A, "--publish", outerPort+":"+innerPort)
		testenv.WriteFile(t, j.own(p.A, "name"), "mine")
		stop := j.watch()
		from, to := p.A, p.B
		for asked := range 4 {
			j.asks(from, fmt.Sprintf("%d mine", asked+1))
			j.move(from, to, "--rsh", from.RSH())
			from, to = to, from
		}
		stop()
	})
}

// TestOnGPUsPause measures the pause by phase, without the library of cucriu run --dir and with it, side by side with
// dump, copy and restore by hand.
func TestOnGPUsPause(t *testing.T) {
	testenv.IsolatedFor(t, 8*time.Minute, func(t *testing.T) {
		p := realPair(t, eachHasOne)
		for _, text := range strings.Fields(os.Getenv("CUCRIU_TEST_SIZES")) {
			size, _ := strconv.Atoi(text)
			for what, with := range map[string][]string{text + " MiB": {"/usr/bin/env"}, text + " MiB, with the library": testenv.WithGuest(t)} {
				args := append(with, testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--mib", "16", "--ballast", text, "--dir")
				w := p.A.StartProgram(args[0], args[1:]...)
				w.WaitTicks(p.A, 3)
				show(t, what, move(t, w, p.A, p.B, "--precopy=never", "--rsh", p.A.RSH()))
				if roomFor(t, size) {
					show(t, what+", pre-copy", move(t, w, p.B, p.A, "--rsh", p.B.RSH(), "--precopy"))
				}
				if roomFor(t, size) && len(with) == 1 {
					byHand(t, w, p.A, p.B, text)
				}
				endWork(t, w)
			}
		}
	})
}

// roomFor reports whether this machine, which is both hosts, has room for a pre-copy: the images of
// two rounds here, one there, and the job's own memory there.
func roomFor(t *testing.T, mib int) bool {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "MemAvailable:")
	available, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return available/1024 > 9*mib/2
}

// byHand moves a work by cucriu dump, a copy and cucriu restore.
func byHand(t *testing.T, w *hosts.Job, from, to *hosts.Host, size string) {
	t.Helper()
	const images = "/dev/shm/by-hand"
	w.Prepare(to)
	begin := time.Now()
	from.Run("cucriu", "dump", "-t", w.Root(), "-D", images)
	dumped := time.Since(begin)
	if out, err := exec.Command("cp", "-r", from.Path(images), to.Path(images)).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	copied := time.Since(begin)
	to.Run("cucriu", "restore", "-D", images)
	figure(t, "%s MiB by hand: %.2f s; dump %.2f, copy within the machine's memory %.2f, restore %.2f", size, time.Since(begin).Seconds(), dumped.Seconds(), (copied - dumped).Seconds(), (time.Since(begin) - copied).Seconds())
	w.Is(to)
	for _, h := range []*hosts.Host{from, to} {
		h.Run("rm", "-r", images)
	}
}

// endWork kills every copy of a work.
func endWork(t *testing.T, w *hosts.Job) {
	t.Helper()
	for _, p := range w.Copies() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	}
	testenv.Eventually(t, testenv.Soon, "the work ends", func() bool { return len(w.Copies()) == 0 })
}

// figure logs what was measured, also into a file, because a test's log is shown at its end.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf(format, args...)
	path := os.Getenv("CUCRIU_TEST_FIGURES")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

// show logs what a migration took.
func show(t *testing.T, what string, r result) {
	t.Helper()
	var phases []string
	for _, p := range r.Phases {
		phases = append(phases, fmt.Sprintf("%s %.2f", p.Name, p.Took.Seconds()))
	}
	figure(t, "%s: stood still for %.2f s (predicted %.2f), before for the pre-copy %.2f s; %d MiB sent then, %d MiB before; %.1f GB/s; %s", what,
		r.Pause.Seconds(), r.Predicted.Seconds(), r.Before.Seconds(), r.Bytes>>20, r.Ahead>>20, r.Bandwidth/1e9, strings.Join(phases, ", "))
}
