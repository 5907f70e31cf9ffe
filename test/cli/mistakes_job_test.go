package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"cucriu/internal/testenv"
)

const refused = 3

// another returns a thread of a job that is not its first.
func another(t *testing.T, job *testenv.Job) string {
	t.Helper()
	for tid := range testenv.ThreadStates(t, job.PID) {
		if tid != job.PID {
			return strconv.Itoa(tid)
		}
	}
	t.Fatal("the job has one thread only")
	return ""
}

// zombie returns a process that has ended, and that nobody waits for.
func zombie(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	pid := cmd.Process.Pid
	job := testenv.JobOf(t, pid)
	testenv.Eventually(t, testenv.Soon, "it has ended", func() bool { return !job.Alive() })
	return strconv.Itoa(pid)
}

// plain starts a process without CUDA that criu can dump.
func plain(t *testing.T, host *testenv.Host) string {
	t.Helper()
	return strconv.Itoa(host.Spawn(t.TempDir(), "/bin/sleep", "1000"))
}

func TestMistakesAboutWhatToDump(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		root, thread := b.job.Root(), another(t, b.job)
		b.make(t,
			mistake{"init", []string{"dump", "-t", "1", "-D", "images"}, refused, "criu-in-tree: process "},
			mistake{"who dumps", []string{"dump", "-t", strconv.Itoa(os.Getpid()), "-D", "images"}, refused, "start the dump from outside the tree"},
			mistake{"nobody", []string{"dump", "-t", "4194303", "-D", "images"}, refused, "process 4194303: does not exist: name a process of the job"},
			mistake{"thread", []string{"dump", "-t", thread, "-D", "images"}, refused, "is a thread of process " + root + ": name process " + root},
			mistake{"zombie", []string{"dump", "-t", zombie(t), "-D", "images"}, refused, "has ended, and its parent, process " + strconv.Itoa(os.Getpid())},
			mistake{"check of nobody", []string{"check", "-t", "4194303"}, refused, "1 blocking finding: no-process"},
			mistake{"suspend of a thread", []string{"suspend", "-p", thread}, refused, "is a thread of process " + root + ": name process " + root},
			mistake{"resume of a thread", []string{"resume", "-p", thread}, refused, "name process " + root},
			mistake{"lock of nobody", []string{"lock", "-p", root, "-p", "4194303"}, refused, "process 4194303 does not exist"},
			mistake{"state of a thread", []string{"state", "-p", thread}, refused, "name process " + root},
			mistake{"GPUs of nobody", []string{"gpus", "-p", "4194303"}, refused, "process 4194303: does not exist"},
			mistake{"suspend without CUDA", []string{"suspend", "-p", plain(t, b.Host)}, refused, "uses no CUDA: name one that does"},
			mistake{"lock without CUDA", []string{"lock", "-p", plain(t, b.Host)}, refused, "uses no CUDA: name one that does"},
			mistake{"state without CUDA", []string{"state", "-p", "1"}, refused, "process 1 uses no CUDA"},
			mistake{"check without CUDA", []string{"check", "-t", plain(t, b.Host)}, 0, "no process of its tree uses CUDA: criu dumps it by itself"},
		)
	})
}

// TestADumpWithoutCUDAIsNoMistake: criu does it, and the result says so.
func TestADumpWithoutCUDAIsNoMistake(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		images := b.path("images")
		pid := plain(t, b.Host)
		for _, m := range []mistake{
			{"dump, to a relative directory", []string{"dump", "-t", pid, "-D", "images"}, 0, "dumped process " + pid + " into " + images + ": no CUDA process"},
			{"map", []string{"map", "-D", "images"}, 0, "no process of the image uses CUDA: there is nothing to map"},
			{"inspect", []string{"inspect", "images"}, 0, "no CUDA"},
		} {
			stdout, stderr, status := b.run(t, m.args...)
			if status != 0 || !contains(stdout, m.says) {
				t.Errorf("%s: exit status %d\n%s%s", m.name, status, stdout, stderr)
			}
		}
	})
}

func TestMistakesAboutWhereTheImageGoes(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		b.write(t, "file", "")
		b.write(t, "full/precious", "do not touch")
		testenv.SmallDisk(t, b.path("small"), "1m")
		testenv.SmallDisk(t, b.path("readonly"), "1m")
		if err := syscall.Mount("none", b.path("readonly"), "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("nowhere", b.path("link")); err != nil {
			t.Fatal(err)
		}
		b.write(t, "theirs/file", "")
		if err := os.Chown(b.path("theirs"), 1000, 1000); err != nil {
			t.Fatal(err)
		}
		dump := func(dir string, more ...string) []string {
			return append([]string{"dump", "-t", b.job.Root(), "-D", dir}, more...)
		}
		b.make(t,
			mistake{"below nothing, refused later", dump("nowhere/below/images", "-W", "absent"), refused, "directory for criu's log (--work-dir): stat absent: no such file"},
			mistake{"below nothing in somebody's directory", dump("theirs/below/images"), refused, "parent directory " + b.path("theirs/below") + " does not exist, and cucriu does not create it because users other than root could replace it: create it first (mkdir -p "},
			mistake{"below a link to nothing", dump("link/below/images"), refused, "no such file or directory"},
			mistake{"a file", dump("file"), refused, b.path("file") + " is not a directory: name a new one"},
			mistake{"below a file", dump("file/images"), refused, "image-directory: "},
			mistake{"not empty", dump("full"), refused, b.path("full") + " is not empty, and a dump never overwrites another"},
			mistake{"the directory here", dump("."), refused, "is not empty"},
			mistake{"a link", dump("link"), refused, "is a symbolic link to "},
			mistake{"a mount point", dump("small"), refused, "is a mount point: name a new directory inside it"},
			mistake{"too small a disk", dump("small/images"), refused, "disk-space: the image takes at least "},
			mistake{"read-only", dump("readonly/images"), refused, "name an image directory in a writable one"},
			mistake{"no folder for the log", dump("images", "-W", "nowhere"), refused, "directory for criu's log (--work-dir): stat nowhere: no such file"},
			mistake{"a file for the folder of the log", dump("images", "-W", "file"), refused, "directory for criu's log: file is not a directory"},
			mistake{"no configuration of criu", dump("images", "--criu-config", "nowhere"), refused, "cannot read criu's configuration: open nowhere: no such file"},
			mistake{
				"an option of criu with dashes", dump("images", "--criu-config", b.write(t, "dashed.conf", "--leave-running\n")), refused,
				b.path("dashed.conf") + ": unrecognized option '----leave-running'",
			},
			mistake{"an incomplete image is asked for", dump("images", "--criu-config", b.write(t, "lazy.conf", "lazy-pages\n")), refused, "this dump makes a complete one: leave the option out"},
			mistake{
				"a mistyped option of criu", dump("images", "--criu-config", b.write(t, "criu.conf", "tcp-establishd\n")), refused,
				"criu, in " + b.path("criu.conf") + ": unrecognized option '--tcp-establishd'",
			},
			mistake{"check says the same", []string{"check", "-t", b.job.Root(), "-D", "full"}, refused, "1 blocking finding: image-directory"},
		)
	})
}

func TestMistakesAboutCriu(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		b := newBench(t)
		if err := os.WriteFile(b.write(t, "old", ""), []byte("#!/bin/sh\necho Version: 3.15\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(b.path("old"), 0o700); err != nil {
			t.Fatal(err)
		}
		b.write(t, "script", "#!/bin/sh\n")
		dump := func(criu string) []string {
			return []string{"dump", "-t", b.job.Root(), "-D", "images", "--criu", criu}
		}
		const install = ": install CRIU 4.0 or newer (Debian 12 has 3.17), or specify its path with --criu"
		b.make(t,
			mistake{"none", dump("nowhere/criu"), refused, "nowhere/criu is not an executable file" + install},
			mistake{"not executable", dump("./script"), refused, "./script is not an executable file" + install},
			mistake{"something else", dump("/bin/true"), refused, "is /bin/true CRIU 4.0 or newer (/bin/true --version)?"},
			mistake{"one that is too old and fails", dump("./old"), refused, "criu-version: CRIU 3.15 is older than 4.0: install CRIU 4.2 or newer"},
			mistake{"restore without", []string{"restore", "-D", ".", "--criu", "nowhere/criu"}, refused, "image"},
			mistake{"check of none", []string{"check", "--criu", "nowhere/criu"}, refused, "1 blocking finding: criu-missing"},
			mistake{"check of something else", []string{"check", "--criu", "/bin/true"}, refused, "criu-missing"},
			mistake{"check of an old one", []string{"check", "--criu", "./old"}, refused, "criu-version"},
		)
		empty := t.TempDir()
		for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
			if testenv.Exists(filepath.Join(dir, "criu")) {
				return // this machine has one that is found without PATH
			}
		}
		b.Setenv("CUCRIU_CRIU", "")
		b.Setenv("PATH", empty)
		b.make(t, mistake{"none in PATH", []string{"dump", "-t", b.job.Root(), "-D", "images"}, refused, "criu was not found in PATH" + install})
	})
}
