package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// TestTheLibraryReadsTheImage at a restore: the process has no memory for what is on the GPUs. Where it cannot, the
// memory is filled in first.
func TestTheLibraryReadsTheImage(t *testing.T) {
	testenv.Parallel(t)
	for name, c := range map[string]struct {
		config, want string
		args         []string
		before       func(t *testing.T, job *testenv.Job)
	}{
		"as it is":             {testenv.Patient, "move in from files", []string{"--ballast", "300"}, nil},
		"with holes of zeros":  {testenv.Patient, "move in from files", []string{"--zeros", "160"}, nil},
		"handles":              {testenv.Patient, "move in from files", []string{"--memory", "vmm"}, nil},
		"both GPUs":            {testenv.Patient, "move in from files", []string{"--gpus", "0,1", "--peer", "both"}, nil},
		"compressed":           {testenv.Patient + "fast_lane: {compress: zstd}\n", "fill moved", []string{"--flat", "200"}, nil},
		"without a descriptor": {testenv.Patient, "fill moved", nil, fewDescriptors},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 2, "--mib-per-gpu", "800")
				host.Setenv("CUCRIU_CONFIG", host.Config(c.config))
				fill := `for ((i = 10; i < 100; i++)); do eval "exec $i</dev/null"; done; exec "$@"`
				under := append([]string{"/bin/bash", "-c", fill, "bash"}, testenv.WithGuest(t)...)
				job := host.StartUnder(under, 1, append(c.args, "--mib", "64")...)
				job.Runs()
				if c.before != nil {
					c.before(t, job)
				}
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
				if names := phases(host); !slices.Contains(names, c.want) {
					t.Errorf("no phase is called %q, of %q", c.want, names)
				}
				images = testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// fewDescriptors leaves a process some, but not enough for the files. Nearly all numbers below are taken.
func fewDescriptors(t *testing.T, job *testenv.Job) {
	t.Helper()
	pid := job.MustStatus(0).PID
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	few := uint64(0)
	for free := 4; free > 0; few++ {
		if !slices.ContainsFunc(open, func(fd os.DirEntry) bool { return fd.Name() == strconv.FormatUint(few, 10) }) {
			free--
		}
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: few}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestDamageInWhatTheLibraryReads ends the restore before the job has run, also if whoever was to find out is killed
// when the library has read everything. The image can be mended.
func TestDamageInWhatTheLibraryReads(t *testing.T) {
	testenv.Parallel(t)
	for _, who := range []string{"nobody", "kill", "kill-criu+kill"} {
		t.Run(who, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "400")
				job := startWithGuest(t, host)
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				path := largest(t, images)
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				flip := func() {
					data[len(data)/2] ^= 1
					testenv.WriteFile(t, path, string(data))
				}
				flip()
				before := job.MustStatus(0).Tick
				if who != "nobody" {
					host.UseFailpoint("restore.back.unchecked=" + who)
				}
				out, err := host.Cucriu("restore", "-D", images)
				testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", job.Gone)
				const damaged = "is damaged: checksum mismatch"
				if said := testenv.Exits(t, host, 0, "status", "--all"); !strings.Contains(said+out, damaged) || err == nil && who == "nobody" {
					t.Errorf("restore of a damaged image: %v\n%s\n%s", err, out, said)
				}
				if after := job.MustStatus(0).Tick; after != before {
					t.Errorf("the job has run from tick %d to tick %d with damaged memory", before, after)
				}
				flip()
				host.Setenv("CUCRIU_FAILPOINT", "")
				host.Restore(images)
				job.Runs()
				job.Check()
			})
		})
	}
}

// TestSomebodyIsKilledWhileTheLibraryReads the image: it reads on, and whoever takes over waits for it.
func TestSomebodyIsKilledWhileTheLibraryReads(t *testing.T) {
	testenv.Parallel(t)
	for _, who := range []string{"kill", "kill-criu", "kill-criu+kill"} {
		t.Run(who, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1, "--mib-per-gpu", "800")
				job := startWithGuest(t, host, "--ballast", "300")
				images := testenv.NewImages(t)
				moved(t, host, host.TryDump(job, images))
				marks := t.TempDir()
				host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
				host.UseFailpoint("told-in=" + who)
				_ = host.TryRestore(images)
				if !testenv.Exists(filepath.Join(marks, "told-in")) {
					t.Error("the failpoint was not reached")
				}
				host.WaitOutcome("running")
				job.Runs()
				job.Check()
			})
		})
	}
}

// largest is the largest file of a directory.
func largest(t *testing.T, dir string) (path string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var most int64
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Size() > most {
			path, most = filepath.Join(dir, entry.Name()), info.Size()
		}
	}
	return path
}
