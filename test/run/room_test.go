package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestMemoryTakesRoomByItsContent: a job that holds more GPU memory than there is room for is checkpointed if most of that is 0.
// If it is not, the job runs on, is told what lacks, and is shown as not protected.
func TestMemoryTakesRoomByItsContent(t *testing.T) {
	testenv.Parallel(t)
	for name, fits := range map[string]bool{"--zeros": true, "--ballast": false} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := worldOn(t, testenv.NewHost(t, 1, "--mib-per-gpu", "1200"))
				must(t, os.MkdirAll(filepath.Dir(w.dir), 0o755))
				must(t, unix.Mount("tmpfs", filepath.Dir(w.dir), "tmpfs", 0, "mode=755,size=120m"))
				defer unix.Unmount(filepath.Dir(w.dir), unix.MNT_DETACH)
				w.mounts = mounts(t)
				cudawork := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
				w.command = []string{cudawork, "--dir", w.work, "--mib", "16", name, "200"}
				w.cuda = w.work
				r := w.run("--stage", "disk")
				list := func() string {
					out, err := w.host.Cucriu("jobs", "list")
					if err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					return out
				}
				if !fits {
					r.says("too little room for what the GPUs hold")
					for _, says := range []string{"the image takes at least 2", "MiB free", "the job keeps running"} {
						r.says(says)
					}
					r.awaits("the job is shown as not protected", func() bool {
						return strings.Contains(strings.Join(strings.Fields(list()), " "), "could not be made since")
					})
					w.ticks(3)
					w.checks()
					r.signal(unix.SIGTERM)
					<-r.done
					r.says(fmt.Sprintf("what %s has done since", filepath.Base(w.dir)))
					return
				}
				r.verified(2)
				if said := list(); strings.Contains(said, "not protected") {
					t.Error(said)
				}
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

// TestTheMemoryGroupHasRoomForWhatTheDriverMoves, or the image goes to the disk, or the checkpoint is refused. Where
// the library leaves all memory to the driver, nobody counted it: the group's out-of-memory killer ended the job.
func TestTheMemoryGroupHasRoomForWhatTheDriverMoves(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		group, limitFile := testenv.MemoryGroup(t)
		if group == "" {
			t.Skip("this kernel mounts no memory controller in which a group could be made")
		}
		w := emptyWorld(t)
		w.command = []string{
			testenv.Artefact(t, "make workload", "build", "workload", "cudawork"), "--dir", w.work,
			"--mib", "200",
		}
		w.cuda = w.work
		// The library of the tests' own program moves less than others do.
		program := testenv.Artefact(t, "make build", "bin", "cucriu")
		enter := []string{"-c", `echo 0 >"$0" && exec "$@"`, filepath.Join(group, "cgroup.procs")}
		cmd := w.host.Command("/bin/sh", slices.Concat(enter, []string{
			program, "run", "--dir", w.dir, "--every", "1h",
			"--",
		}, w.command)...)
		limit := func(bytes uint64) {
			testenv.WriteFile(t, filepath.Join(group, limitFile), strconv.FormatUint(bytes, 10))
		}
		limit(plenty)
		r := w.start(cmd, nil)
		w.ticks(3)
		for _, test := range []struct {
			room uint64
			fits bool
		}{{300 << 20, keepsOnDisk(t, w.dir)}, {150 << 20, false}} {
			limit(plenty)
			groups, err := proc.System{}.MemoryGroups(cmd.Process.Pid)
			must(t, err)
			limit(plenty - groups[0].Room() + test.room)
			out, err := w.host.Cucriu("jobs", "checkpoint", w.dir)
			if (err == nil) != test.fits || err != nil && (!strings.Contains(out, "memory-cgroup") ||
				!strings.Contains(out, "the job keeps running")) {
				t.Errorf("jobs checkpoint in %d MiB: %v\n%s", test.room>>20, err, out)
			}
			w.ticks(3)
		}
		w.checks()
		limit(plenty)
		r.signal(unix.SIGTERM)
		r.ends(75, "checkpoint 00000")
	})
}

// keepsOnDisk reports whether files in dir take no memory.
func keepsOnDisk(t *testing.T, dir string) bool {
	t.Helper()
	var stat unix.Statfs_t
	must(t, unix.Statfs(dir, &stat))
	return stat.Type != unix.TMPFS_MAGIC
}

// TestAStopWhoseImageDoesNotFitLosesNothing: the job has ended by then, and its image is complete. It is made a checkpoint once
// there is room.
func TestAStopWhoseImageDoesNotFitLosesNothing(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newWorld(t)
		disk := filepath.Dir(w.dir)
		must(t, os.MkdirAll(disk, 0o755))
		must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=755,size=200m"))
		defer unix.Unmount(disk, unix.MNT_DETACH)
		w.mounts = mounts(t)
		w.flags = []string{"--every", "1s"} // what the stop takes is longer
		r := w.run()
		r.verified(1)
		r.killsAll()
		w.flags = []string{"--every", "1h"}
		s := w.stopAt("jobs.staged")
		r = w.runAs(s.host)
		r.resumed("")
		said := w.asks(w.host, "jobs", "stop", w.dir)
		s.await(r)
		full := filepath.Join(disk, "full")
		must(t, unix.Fallocate(int(create(t, full).Fd()), 0, 0, freeOn(t, disk)))
		s.goOn()
		if out := <-said; !strings.Contains(out, "the job has ended, and its image in "+w.dir+"/staged/") {
			t.Errorf("jobs stop: %s", out)
		}
		<-r.done
		if said := r.said(); strings.Contains(said, "is lost") || !strings.Contains(said, "the same command makes a checkpoint of the image in ") {
			t.Error(said)
		}
		must(t, os.Truncate(full, 0)) // it is open
		r = w.run()
		r.says("was made from the image that an earlier supervisor had staged")
		r.resumed("")
		w.finish(r)
	})
}

// freeOn is how many bytes a file system has free.
func freeOn(t *testing.T, path string) int64 {
	t.Helper()
	var disk unix.Statfs_t
	must(t, unix.Statfs(path, &disk))
	return int64(disk.Bavail) * disk.Bsize
}
