package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/guest"
	"cucriu/internal/testenv"
)

// TestAJobOnTwoGPUsHasTheGuest: without it the driver would restore none of its checkpoints. The job keeps the library with
// which it was started. The first checkpoint is tried beside the job, which has a socket of the library by then.
func TestAJobOnTwoGPUsHasTheGuest(t *testing.T) {
	testenv.Parallel(t)
	for memory, options := range map[string][]string{"vmm": nil, "alloc": {"--ipc-handles"}} {
		t.Run(memory, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "1200", "--peer-limit-mib", "8")
				host.NVML("add 752") // so much that only the kernel module can tell that no allocation is large
				w := worldOn(t, host)
				w.command = append([]string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--gpus", "0,1", "--peer", "both", "--memory", memory, "--mib", "16"}, options...)
				w.cuda = w.work
				r := w.run()
				r.says("LD_PRELOAD=" + filepath.Join(w.dir, guest.File))
				r.verified(2)
				r.killsAll()
				newest := w.newest()
				before, err := os.Stat(filepath.Join(w.dir, guest.File))
				must(t, err)
				const files = "restore.back.files"
				marks := t.TempDir()
				host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
				host.UseFailpoint(files + "=run true")
				r = w.run()
				r.resumed(newest)
				w.ticks(3)
				w.checks()
				if !testenv.Exists(filepath.Join(marks, files)) {
					t.Error("the library did not read the checkpoint itself")
				}
				if after, err := os.Stat(filepath.Join(w.dir, guest.File)); err != nil || !os.SameFile(before, after) {
					t.Errorf("the library was replaced: %v", err)
				}
				r.kill()
			})
		})
	}
}

// TestAJobSharesMemory of one process with another one, on another GPU: it is checkpointed, tried beside itself, and resumed.
func TestAJobSharesMemory(t *testing.T) {
	testenv.Parallel(t)
	for _, how := range []string{"--ipc", "--ipc-vmm"} {
		t.Run(how, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, 2, "--mib-per-gpu", "200"))
				w.command = []string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--gpus", "0,1", "--mib", "16", how}
				w.work = filepath.Join(w.work, "rank-1")
				w.cuda = w.work
				r := w.run()
				r.verified(2)
				r.killsAll()
				newest := w.newest()
				r = w.run()
				r.resumed(newest)
				w.ticks(3)
				w.checks()
				r.kill()
			})
		})
	}
}

// TestTheFileOfTheGuestIsRemoved, and another one may be there in its place: a backup, or somebody who tidies up.
func TestTheFileOfTheGuestIsRemoved(t *testing.T) {
	testenv.Parallel(t)
	for name, test := range map[string]struct {
		putBack bool // by somebody, before the last checkpoint
		says    string
	}{
		"and put back": {true, "resumes from checkpoint"},
		"for good":     {false, "is missing: it is put back"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, 1, "--mib-per-gpu", "400"))
				w.command = []string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--mib", "64"}
				w.cuda = w.work
				r := w.run()
				r.verified(1)
				path := filepath.Join(w.dir, guest.File)
				data, err := os.ReadFile(path)
				must(t, err)
				must(t, os.Remove(path))
				if test.putBack {
					must(t, os.WriteFile(path, data, guest.Mode))
					r.signal(unix.SIGTERM)
					<-r.done
				} else {
					r.killsAll()
				}
				newest := w.newest()
				r = w.run()
				r.says(test.says)
				r.resumed(newest)
				w.ticks(3)
				w.checks()
				r.kill()
			})
		})
	}
}

// TestTheGuestIsLeftOut where it was never tried, or cannot be loaded.
func TestTheGuestIsLeftOut(t *testing.T) {
	testenv.Parallel(t)
	for name, host := range map[string]struct {
		args   []string
		noexec bool
		says   string
	}{
		"another driver": {[]string{"--driver", "570"}, false, "--guest is left out: it was not tried with the driver 570"},
		"noexec":         {nil, true, "is on a file system that is mounted with noexec"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, 2, host.args...))
				if host.noexec {
					must(t, os.MkdirAll(filepath.Dir(w.dir), 0o755))
					must(t, unix.Mount("tmpfs", filepath.Dir(w.dir), "tmpfs", unix.MS_NOEXEC, "mode=755"))
					defer unix.Unmount(filepath.Dir(w.dir), unix.MNT_DETACH)
				}
				w.command = []string{"sh", "-c", `echo "<$LD_PRELOAD>"`}
				r := w.run()
				<-r.done
				output, err := os.ReadFile(filepath.Join(w.dir, "output.log"))
				must(t, err)
				if string(output) != "<>\n" || !strings.Contains(r.said(), host.says) || host.says == "" && strings.Contains(r.said(), "guest") {
					t.Errorf("the job has written %q; cucriu run says\n%s", output, r.said())
				}
			})
		})
	}
}

// TestOnlyWhatHasChangedIsCopied of the GPUs' memory, also in a run that was resumed, and the checkpoint has all of it.
func TestOnlyWhatHasChangedIsCopied(t *testing.T) {
	testenv.Parallel(t)
	for name, test := range map[string]struct {
		args, options []string
		unchanged     string
	}{
		"in memory":           {[]string{"--mib", "16", "--ballast", "96"}, []string{"--stage", "memory"}, "96.0 MiB of GPU memory unchanged"},
		"on disk":             {[]string{"--mib", "16", "--ballast", "96"}, []string{"--stage", "disk"}, "96.0 MiB of GPU memory unchanged"},
		"compressed":          {[]string{"--mib", "16", "--ballast", "96"}, []string{"--compress", "zstd"}, "96.0 MiB of GPU memory unchanged"},
		"copied all the same": {[]string{"--mib", "16", "--ballast", "96"}, []string{"--verify-unchanged"}, "96.0 MiB of GPU memory unchanged"},
		"as large as a table": {[]string{"--mib", "16", "--ballast", "496"}, nil, "496.0 MiB of GPU memory unchanged"},
		"two GPUs":            {[]string{"--mib", "16", "--ballast", "64", "--gpus", "0,1"}, nil, "128.0 MiB of GPU memory unchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, 2, "--mib-per-gpu", "1200"))
				w.command = append([]string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work}, test.args...)
				w.cuda = w.work
				r := w.run(test.options...)
				r.verified(3)
				r.says(test.unchanged)
				if said := r.said(); strings.Contains(said, "no checkpoint") {
					t.Errorf("a checkpoint has failed: %s", said)
				}
				r.killsAll()
				newest := w.newest()
				r = w.run()
				r.resumed(newest)
				w.ticks(3)
				w.checks()
				r.verified(2)
				r.says(test.unchanged)
				w.ticks(3)
				w.checks()
				r.kill()
			})
		})
	}
}

// TestWhatWasNotCopiedComesBack when somebody is killed: from the GPUs, or from the checkpoint that has it.
func TestWhatWasNotCopiedComesBack(t *testing.T) {
	testenv.Parallel(t)
	for _, point := range []string{
		"told-out-kept=kill", "told-out-kept=error", "dump.kept=kill", "dump.moved=kill", "dump.moved=kill-watcher+kill", "dump.checkpoint=error", "dump.copying=error", "dump.noted=kill-watcher+kill",
		"dump.dumping=kill-watcher+kill", "dump.dumping=kill-criu", "dump.back.kept=kill", "dump.back.kept=error", "dump.moved=kill-watcher+kill,dump.filling-same=kill",
	} {
		t.Run(point, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
				w := withUnchangedMemory(t, host)
				newest := w.newest()
				marks := t.TempDir()
				host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
				host.UseFailpoint(point)
				r := w.run()
				r.resumed(newest)
				first, _, _ := strings.Cut(point, "=")
				r.awaits("the failpoint is reached", func() bool { return testenv.Exists(filepath.Join(marks, first)) })
				w.ticks(3)
				w.checks()
				r.verified(1)
				r.killsAll()
				newest = w.newest()
				host.UseFailpoint("")
				r = w.run()
				r.resumed(newest)
				w.ticks(3)
				w.checks()
				r.kill()
			})
		})
	}
}

// withUnchangedMemory is a job with a checkpoint, with which the next one is compared. Most of its memory does not change.
func withUnchangedMemory(t *testing.T, host *testenv.Host) *world {
	t.Helper()
	w := worldOn(t, host)
	w.command = []string{testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work, "--mib", "16", "--ballast", "96"}
	w.cuda = w.work
	r := w.run()
	r.verified(1)
	r.killsAll()
	return w
}

// TestTheEarlierCheckpointIsRemovedMeanwhile by somebody who tidies up, when its files are the only ones with what was not copied.
func TestTheEarlierCheckpointIsRemovedMeanwhile(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		w, marks := withUnchangedMemory(t, host), t.TempDir()
		host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
		host.UseFailpoint("dump.noted=run " + testenv.Script(t, "rm -r "+filepath.Join(w.dir, "checkpoints")+"/*") + "+kill,dump.back.kept=error")
		r := w.run()
		r.awaits("what the GPUs have kept is not used", func() bool { return testenv.Exists(filepath.Join(marks, "dump.back.kept")) })
		w.ticks(3)
		w.checks()
		r.kill()
	})
}

// TestAnImageThatNamesAnEarlierOneBecomesACheckpoint if the supervisor was killed when it was staged.
func TestAnImageThatNamesAnEarlierOneBecomesACheckpoint(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1, "--mib-per-gpu", "200")
		w := withUnchangedMemory(t, host)
		host.UseFailpoint("jobs.staged=kill")
		r := w.run("--stage", "disk")
		<-r.done
		host.UseFailpoint("")
		r = w.run("--stage", "disk")
		r.says("was made from the image that an earlier supervisor had staged")
		r.killsAll()
		newest := w.newest()
		r = w.run()
		r.resumed(newest)
		w.ticks(3)
		w.checks()
		r.kill()
	})
}
