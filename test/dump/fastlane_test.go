package dump

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/cudackpt"
	"cucriu/hooks/timeline"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/inject"
	"cucriu/internal/kit/pages"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// chunkFiles lists the files of the fast lane in a folder.
func chunkFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "cucriu-pages-*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// onDisk returns the disk space that files take, in bytes.
func onDisk(t *testing.T, files []string) (bytes int64) {
	t.Helper()
	for _, file := range files {
		var stat unix.Stat_t
		if err := unix.Stat(file, &stat); err != nil {
			t.Fatal(err)
		}
		bytes += stat.Blocks * 512
	}
	return bytes
}

// failOnce makes the hook fail the first time that it reaches a point. It returns a
// function that reports whether that has happened.
func failOnce(t *testing.T, host *testenv.Host, point, action string) (reached func() bool) {
	t.Helper()
	marks := t.TempDir()
	host.UseFailpoint(point + "=" + action)
	host.Setenv("CUCRIU_FAILPOINT_MARKS", marks)
	return func() bool { return testenv.Exists(filepath.Join(marks, point)) }
}

// dumpWith runs criu dump with a second action script, which makes the dump fail.
func dumpWith(t *testing.T, host *testenv.Host, job *testenv.Job, images, script string) {
	t.Helper()
	scripts := []string{host.HookBin, testenv.Script(t, script)}
	if out, err := host.CriuCommandScripts("dump", images, scripts, "-t", job.Root()).CombinedOutput(); err == nil {
		t.Fatalf("criu dump succeeded: %s", out)
	}
}

// TestTheImageOfAFailedDumpIsRemovedAtOnce: its files are the only copy of the GPU state
// then, and the watcher keeps them open.
func TestTheImageOfAFailedDumpIsRemovedAtOnce(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name string
		dump func(t *testing.T, host *testenv.Host, job *testenv.Job, images string)
	}{
		{"before criu ends", func(t *testing.T, host *testenv.Host, job *testenv.Job, images string) {
			dumpWith(t, host, job, images, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ] || { rm -rf '`+images+`'; exit 1; }`)
		}},
		{"while the watcher works", func(t *testing.T, host *testenv.Host, job *testenv.Job, images string) {
			host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nrestore: {timeout: 3s}\n"))
			reached := failOnce(t, host, "dump.filling", "hang") // the fill starts again after the timeout
			dumpWith(t, host, job, images, `[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]`)
			testenv.Eventually(t, testenv.Soon, "the watcher fills", reached)
		}},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(2, "--procs", "2", "--mib", "4", "--spin", "event-sync")
				images := testenv.NewImages(t)
				test.dump(t, host, job, images)
				if err := os.RemoveAll(images); err != nil {
					t.Fatal(err)
				}
				host.WaitOutcome("running")
				job.Runs()
			})
		})
	}
}

func TestRecoverFillsFromTheDirectoryWhenTheWatcherWasKilled(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.StartUnder(undumpable(t), 1, "--mib", "4", "--spin", "stream-sync")
		host.UseFailpoint("dump.dumping=kill-watcher")
		images := testenv.NewImages(t)
		if run := host.TryDump(job, images); run.Err == nil {
			t.Fatal("criu dumped a device")
		}
		testenv.Eventually(t, testenv.Soon, "criu has let go of the job", job.Stopped)
		host.Setenv("CUCRIU_FAILPOINT", "")
		if len(chunkFiles(t, images)) == 0 || !host.Sessions()[0].Members[0].Pages.Dropped {
			t.Fatal("the GPU state is not in files alone")
		}
		testenv.Exits(t, host, 0, "recover")
		job.Runs()
		if left := chunkFiles(t, images); len(left) > 0 {
			t.Errorf("left of the dump that failed: %v", left)
		}
	})
}

// TestAProcessFromWhichNothingCanBeBorrowed is left to criu. The other process is not.
func TestAProcessFromWhichNothingCanBeBorrowed(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--mib", "4", "--spin", "stream-sync")
		failOnce(t, host, "dump.borrow", "error")
		images := host.Dump(job)
		manifest, err := imagedir.ReadManifest(images)
		if err != nil {
			t.Fatal(err)
		}
		lane := slices.DeleteFunc(manifest.Processes, func(p imagedir.Process) bool { return p.Pages == nil })
		if len(lane) != 1 || len(chunkFiles(t, images)) != lane[0].Pages.Files() {
			t.Errorf("%d processes are in the fast lane, with the files %v", len(lane), chunkFiles(t, images))
		}
		host.Restore(images)
		job.Runs()
	})
}

// TestWhoBringsAJobBackIsKilledInTheMiddleOfAFill kills the hook that undoes its own dump,
// and then cucriu recover. Whichever program comes next starts the fill again.
func TestWhoBringsAJobBackIsKilledInTheMiddleOfAFill(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "4", "--spin", "stream-sync")
		host.UseFailpoint("dump.freeze=error,dump.filling=kill-watcher+kill")
		if run := host.TryDump(job, testenv.NewImages(t)); run.Err == nil {
			t.Fatal("criu dumped although its hook was killed")
		}
		if host.Sessions()[0].Outcome != "" {
			t.Fatal("the hook was not killed in the middle of the way back")
		}
		testenv.Eventually(t, testenv.Soon, "the job stands still", job.Stopped)
		if out, err := testenv.Failing(t, host, "dump.filling=kill", "recover"); err == nil {
			t.Fatalf("cucriu recover was not killed:\n%s", out)
		}
		host.Setenv("CUCRIU_FAILPOINT", "")
		testenv.Exits(t, host, 0, "recover")
		job.Runs()
	})
}

// TestPlainCriuGivesBackNothingThatRuns restores, with criu alone, an image whose GPU state
// is in our own files. The processes come back stopped. The driver does not take zeros for
// their GPU state, because the memory for it is inaccessible.
func TestPlainCriuGivesBackNothingThatRuns(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "4")
		images := host.Dump(job)
		if out, err := host.CriuCommandScripts("restore", images, nil, "-d").CombinedOutput(); err != nil {
			t.Fatalf("criu restore: %v\n%s", err, out)
		}
		testenv.Eventually(t, testenv.Soon, "what criu has restored without the hook is stopped", job.Stopped)
		for _, command := range [][]string{{"check", "-t", job.Root()}, {"dump", "-t", job.Root(), "-D", testenv.NewImages(t)}} {
			if out := testenv.Exits(t, host, testenv.StatusRefused, command...); !strings.Contains(out, "was restored from "+images+" without cucriu-hook") {
				t.Errorf("%v: %s", command, out)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Soon)
		defer cancel()
		process := host.Driver().Process(job.PID)
		tid, err := process.RestoreThreadID(ctx)
		if err != nil {
			t.Fatal(err)
		}
		tracer := inject.NewTracer()
		defer func() { _ = tracer.Release(context.Background()) }()
		if err := tracer.Run(tid); err != nil {
			t.Fatal(err)
		}
		err = process.Restore(ctx, cudackpt.RestoreOptions{})
		t.Logf("the driver: %v", err)
		if err == nil {
			t.Error("the driver has restored GPU state that is not there")
		}
		if state, err := process.State(ctx); err == nil && state != cudackpt.StateCheckpointed && !testenv.RealDriver() {
			t.Errorf("the job is %v", state)
		}
		job.Kill()
		host.Restore(images) // the image is still good
		job.Runs()
	})
}

// TestDamagedChunkFilesAreRefused before criu creates anything, if the damage can be seen
// without reading the files completely.
func TestDamagedChunkFilesAreRefused(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(2, "--procs", "2", "--mib", "4")
		images, good := host.Dump(job), filepath.Join(t.TempDir(), "good")
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		testenv.Copy(t, images, good)
		manifest, err := imagedir.ReadManifest(images)
		if err != nil {
			t.Fatal(err)
		}
		pid := manifest.Processes[0].PID
		name := func(process int) string {
			p := manifest.Processes[process]
			return filepath.Join(images, "cucriu-pages-"+p.Pages.ID+"-"+strconv.Itoa(p.PID))
		}
		index, shard := name(0)+".img", name(0)+"-0.img"
		flip := func(file string, at int64) error {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{b[0] ^ 0x10}, at)
			return err
		}
		putBack := func() {
			t.Helper()
			for _, file := range chunkFiles(t, images) {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range chunkFiles(t, good) {
				data, err := os.ReadFile(file)
				if err == nil {
					err = os.WriteFile(filepath.Join(images, filepath.Base(file)), data, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, test := range []struct {
			name   string
			damage func() error
			says   string
		}{
			{"no index", func() error { return os.Remove(index) }, "the image is not complete"},
			{"a shard is missing", func() error { return os.Remove(shard) }, "the image is not complete"},
			{"a shard is cut off", func() error { return os.Truncate(shard, manifest.Processes[0].Pages.ShardBytes[0]-1) }, "is damaged: it has"},
			{"an index is cut off", func() error { return os.Truncate(index, 4096) }, "is damaged: it has 4096 bytes"},
			{"a directory in its place", func() error {
				_ = os.Remove(shard)
				return os.Mkdir(shard, 0o700)
			}, "is not a regular file"},
			{"swapped between the processes", func() error {
				for _, file := range []string{".img", "-0.img", "-1.img"} {
					if err := unix.Renameat2(unix.AT_FDCWD, name(0)+file, unix.AT_FDCWD, name(1)+file, unix.RENAME_EXCHANGE); err != nil && file != "-1.img" {
						return err
					}
				}
				return nil
			}, "is damaged"},
			{"a bit of the index", func() error { return flip(index, 4096+17) }, "checksum mismatch"},
			{"a bit of a header", func() error { return flip(shard, 24) }, "belongs to another process or image"},
		} {
			if err := test.damage(); err != nil {
				t.Fatalf("%s: %v", test.name, err)
			}
			run := host.TryRestore(images)
			if run.Err == nil || !strings.Contains(run.Log, test.says) || !strings.Contains(run.Log, "process "+strconv.Itoa(pid)+" (cudawork)") {
				t.Errorf("%s: %v\n%s", test.name, run.Err, run.Lines())
			}
			if strings.Contains(run.Log, "Forking task") || !job.Gone() {
				t.Fatalf("%s: criu has created processes\n%s", test.name, run.Lines())
			}
			putBack()
		}

		// A change of one bit of the memory shows only when the chunk is read.
		if i := slices.IndexFunc(manifest.Processes[0].Pages.ShardBytes, func(n int64) bool { return n > 4096 }); i < 0 {
			t.Fatal("no shard holds anything")
		} else if err := flip(name(0)+"-"+strconv.Itoa(i)+".img", 4096+1000); err != nil {
			t.Fatal(err)
		}
		run := host.TryRestore(images)
		testenv.Eventually(t, testenv.Soon, "the half-restored job is gone", job.Gone)
		if got := host.RestoreOutcome(); got != "killed" || !strings.Contains(run.Log, "the chunk of the memory at 0x") || !strings.Contains(run.Log, "checksum mismatch: copy the image again") {
			t.Errorf("outcome %q\n%s", got, run.Lines())
		}
		putBack()
		// The kernel may need a moment longer to free the pids of killed processes.
		testenv.Eventually(t, testenv.Soon, "the image restores", func() bool { return host.TryRestore(images).Err == nil })
		job.Runs()
	})
}

// TestTheMemoryComesBackWithEverySettingOfTheFastLane checks that no setting changes the
// restored memory.
func TestTheMemoryComesBackWithEverySettingOfTheFastLane(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name, yaml string
		codec      pages.Codec // of the chunks that are stored in files; Zero: there are no files
		prefault   bool
	}{
		{"zstd", "fast_lane: {compress: zstd}", pages.Zstd, true},
		{"s2", "fast_lane: {compress: s2}", pages.S2, true},
		{"not on disk", "fast_lane: {sync: false}", pages.Raw, true},
		{"memory not made ready", "fast_lane: {prefault: false}", pages.Raw, false},
		{"by criu", "pages: criu", pages.Zero, true},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\n"+test.yaml+"\n"))
				job := host.Start(1, "--mib", "2", "--flat", "24", "--spin", "ctx-sync")
				images := host.Dump(job)
				files := chunkFiles(t, images)
				if (len(files) > 0) != (test.codec != pages.Zero) {
					t.Fatalf("files of the fast lane: %v", files)
				}
				if codecs := codecsOf(t, images); test.codec != pages.Zero && !slices.Contains(codecs, test.codec) {
					t.Errorf("the memory is stored with %v", codecs)
				}
				if size := onDisk(t, files); test.codec != pages.Zero && (size < 8<<20) != (test.codec != pages.Raw) {
					t.Errorf("24 MiB of one byte take %d bytes", size)
				}
				made := slices.ContainsFunc(host.Sessions()[0].Phases, func(p timeline.Phase) bool { return p.Name == "prefault" && !p.Failed })
				if made != test.prefault {
					t.Errorf("memory was made ready: %v", made)
				}
				host.Restore(images)
				job.Runs()
			})
		})
	}
}

// codecsOf lists the codecs of the chunks of an image's first process.
func codecsOf(t *testing.T, images string) []pages.Codec {
	t.Helper()
	manifest, err := imagedir.ReadManifest(images)
	if err != nil {
		t.Fatal(err)
	}
	p := manifest.Processes[0]
	if p.Pages == nil {
		return nil
	}
	reader, err := pages.Open(images, p.PID, p.Pages)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var codecs []pages.Codec
	buffer := make([]byte, pages.ChunkSize)
	for i := range reader.Chunks() {
		chunk, err := reader.Get(i, buffer)
		if err != nil {
			t.Fatal(err)
		}
		codecs = append(codecs, chunk.Codec)
	}
	return codecs
}

// TestTheLastOfSeveralDumpsIntoOneDirectoryRestores: the directory holds the image of the
// last dump that succeeded.
func TestTheLastOfSeveralDumpsIntoOneDirectoryRestores(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "4")
		first := host.Dump(job, "--leave-running")
		job.Runs()
		old := chunkFiles(t, first)
		images := testenv.NewImages(t)
		testenv.Copy(t, first, images)
		run := host.TryDump(job, images)
		if run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)
		files := chunkFiles(t, images)
		if len(old) == 0 || len(files) != len(old) || filepath.Base(files[0]) == filepath.Base(old[0]) {
			t.Errorf("the first dump's files: %v, after the second: %v", old, files)
		}
		host.Restore(images)
		job.Runs()

		// A dump that is refused, or fails before criu begins, leaves the image as it is.
		last := host.Dump(job, "--leave-running")
		for _, point := range []string{"dump.inspect", "dump.copying"} {
			failing := host.For(t)
			failing.UseFailpoint(point + "=error")
			before := chunkFiles(t, last)
			if run := failing.TryDump(job, last); run.Err == nil || !strings.Contains(run.Log, "failpoint "+point) {
				t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
			}
			job.Runs()
			if after := chunkFiles(t, last); !slices.Equal(before, after) {
				t.Errorf("%s: %v before, %v after", point, before, after)
			}
		}
		if run := host.TryDump(job, last); run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		testenv.Eventually(t, testenv.Soon, "the job is reaped", job.Gone)

		// The image of a job that has ended is all that is left of it.
		other := host.Start(1, "--mib", "4")
		before := chunkFiles(t, last)
		run = host.TryDump(other, last)
		if run.Err == nil || !strings.Contains(run.Log, "holds the image of another job (made of process "+job.Root()+" on ") {
			t.Fatalf("a dump of another job: %v\n%s", run.Err, run.Lines())
		}
		other.Runs()
		if after := chunkFiles(t, last); !slices.Equal(before, after) {
			t.Errorf("%v before, %v after", before, after)
		}
		other.Kill()
		host.Restore(last)
		job.Runs()

		// That of the job itself is not needed, wherever it was copied: no session names the copy.
		again := filepath.Join(t.TempDir(), "again")
		testenv.Copy(t, last, again)
		if run := host.TryDump(job, again, "--leave-running"); run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		job.Runs()
	})
}

// TestTheImageOfAnotherContainersJobIsNotOverwritten: both roots have pid 1, and ran before the image was made.
func TestTheImageOfAnotherContainersJobIsNotOverwritten(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		start := func() *testenv.Job {
			spawn := func(command []string) (pid int) {
				unshare := []string{"--pid", "--fork", "--kill-child", "setsid"}
				outer := host.Spawn(t.TempDir(), "unshare", append(unshare, command...)...)
				testenv.Eventually(t, testenv.Soon, "the job is pid 1 of its namespace", func() bool {
					tree, err := proc.Tree(outer)
					if err != nil || len(tree) < 2 {
						return false
					}
					pid = tree[1]
					status, err := proc.ReadStatus(pid)
					return err == nil && status.ImagePID() == 1
				})
				return pid
			}
			return host.StartWith(spawn, nil, 1, "--mib", "4")
		}
		one, other := start(), start()
		images := testenv.NewImages(t)
		dump := func(job *testenv.Job) testenv.CriuRun {
			return host.TryDump(job, images)
		}
		if run := dump(one); run.Err != nil {
			t.Fatalf("criu dump: %v\n%s", run.Err, run.Lines())
		}
		host.WaitOutcome("dumped")
		before := chunkFiles(t, images)
		run := dump(other)
		if run.Err == nil || !strings.Contains(run.Log, "holds the image of another job (made of process 1 on ") {
			t.Fatalf("a dump of another job: %v\n%s", run.Err, run.Lines())
		}
		other.WaitTicks(other.Ticks()[0] + 3)
		if after := chunkFiles(t, images); len(before) == 0 || !slices.Equal(before, after) {
			t.Errorf("%v before, %v after", before, after)
		}
	})
}

func TestProcessesOfVeryDifferentSizeAreRestored(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		// Each process reports to the folder that --procs would have given it.
		parent := []string{"/bin/sh", "-c", `"$1" --dir "$3/rank-0" --mib 96 & "$1" --dir "$3/rank-1" --mib 1 & "$1" --dir "$3/rank-2" --mib 17 & wait`, "sh"}
		job := host.StartUnder(parent, 3)
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

func TestAProcessWithSeveralGPUsIsRestored(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		job := host.Start(1, "--gpus", "0,1", "--mib", "20", "--spin", "stream-sync")
		host.Restore(host.Dump(job))
		job.Runs()
	})
}

// TestTheFastLaneTakesLockedMemory, which cannot be dropped like other memory.
func TestTheFastLaneTakesLockedMemory(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "32", "--mlock", "--spin", "stream-sync")
		images := host.Dump(job)
		if len(chunkFiles(t, images)) == 0 {
			t.Error("criu has written the GPU state")
		}
		host.Restore(images)
		job.Runs()
	})
}

// TestMemoryOfZerosTakesNoRoom in the image.
func TestMemoryOfZerosTakesNoRoom(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		job := host.Start(1, "--mib", "1", "--zeros", "128")
		images := host.Dump(job)
		files, err := filepath.Glob(filepath.Join(images, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if bytes := onDisk(t, files); bytes == 0 || bytes > 64<<20 { // on the real driver a process has some other memory
			t.Errorf("the image takes %d bytes", bytes)
		}
		host.Restore(images)
		job.Runs()
	})
}

// TestThreadsThatSynchronizeSurviveTheMakingReady of memory by all threads of the process.
func TestThreadsThatSynchronizeSurviveTheMakingReady(t *testing.T) {
	testenv.Parallel(t)
	for _, mode := range []string{"stream-sync", "event-query"} {
		t.Run(mode, func(t *testing.T) {
			testenv.Isolated(t, func(t *testing.T) {
				host := testenv.NewHost(t, 1)
				job := host.Start(1, "--spin", mode, "--threads", "3", "--mib", "64")
				images := host.Dump(job)
				phases := host.Sessions()[0].Phases
				if !slices.ContainsFunc(phases, func(p timeline.Phase) bool { return p.Name == "prefault" && !p.Failed }) {
					t.Errorf("no memory was made ready: %v", phases)
				}
				host.Restore(images)
				job.Runs()
			})
		})
	}
}

// TestCommandRollsBackInTheMiddleOfACopy when the disk is full, and on Ctrl-C.
func TestCommandRollsBackInTheMiddleOfACopy(t *testing.T) {
	testenv.Parallel(t)
	for _, test := range []struct {
		name, says string
		status     int
	}{
		{"no room", "no space left on device", testenv.StatusFailed},
		{"Ctrl-C", "cancelling", 128 + int(unix.SIGINT)},
	} {
		t.Run(strings.ReplaceAll(test.name, " ", "-"), func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) { // with the real driver, the image does not fit on such a small disk
				host := testenv.NewHost(t, 1)
				job := host.Start(2, "--procs", "2", "--mib", "4", "--spin", "event-sync")
				disk := t.TempDir()
				testenv.SmallDisk(t, disk, "128m")
				// Uncompressed, the files would have all of their room before the copy begins.
				host.Setenv("CUCRIU_CONFIG", host.Config("version: 1\nfast_lane: {compress: s2}\n"))
				images, action := filepath.Join(disk, "images"), "fill "+disk
				if test.name == "Ctrl-C" {
					action = "hang"
				}
				reached := failOnce(t, host, "dump.copying", action)
				out := new(strings.Builder)
				cmd := host.CucriuCommand("dump", "-t", job.Root(), "-D", images)
				cmd.Stdout, cmd.Stderr = out, out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				hung := time.AfterFunc(2*testenv.Soon, func() { _ = cmd.Process.Kill() })
				defer hung.Stop()
				testenv.Eventually(t, testenv.Soon, "the dump copies", reached)
				if test.name == "Ctrl-C" {
					if err := cmd.Process.Signal(unix.SIGINT); err != nil {
						t.Fatal(err)
					}
				}
				_ = cmd.Wait()
				if code := cmd.ProcessState.ExitCode(); code != test.status || !strings.Contains(out.String(), test.says) {
					t.Errorf("exit status %d\n%s", code, out)
				}
				testenv.NotDumped(t, job, images)
				testenv.NoWatcher(t, host)
			})
		})
	}
}
