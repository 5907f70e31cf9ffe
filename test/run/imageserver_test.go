package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// served is a file or directory that a file server shows: without extended attributes, and locked only as far as it
// is open, as on NFS. It can be read.
type served struct{ fs.LoopbackNode }

func (*served) Setlk(_ context.Context, _ fs.FileHandle, _ uint64, lock *fuse.FileLock, _ uint32) syscall.Errno {
	if lock.Typ == unix.F_WRLCK {
		return unix.EBADF
	}
	return 0
}

func (n *served) Setlkw(
	ctx context.Context, f fs.FileHandle, owner uint64, lock *fuse.FileLock, flags uint32,
) syscall.Errno {
	return n.Setlk(ctx, f, owner, lock, flags)
}

func (*served) Getxattr(context.Context, string, []byte) (uint32, syscall.Errno) {
	return 0, unix.ENOTSUP
}

func (*served) Listxattr(context.Context, []byte) (uint32, syscall.Errno) { return 0, unix.ENOTSUP }

func (n *served) WrapChild(context.Context, fs.InodeEmbedder) fs.InodeEmbedder {
	return &served{fs.LoopbackNode{RootData: n.RootData}}
}

// readOnly are ways to show a directory at another one so that nobody can write there.
var readOnly = map[string]func(t *testing.T, dir, at string){
	"mount": func(t *testing.T, dir, at string) {
		mount(t, dir, at, "", unix.MS_BIND, "")
		must(t, unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	},
	"file server": func(t *testing.T, dir, at string) {
		root := &served{fs.LoopbackNode{RootData: &fs.LoopbackRoot{Path: dir}}}
		server, err := fs.Mount(at, root, &fs.Options{MountOptions: fuse.MountOptions{
			AllowOther: true, DirectMountStrict: true, DirectMountFlags: unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV,
			EnableLocks: true,
		}})
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) {
			t.Skipf("this machine is without FUSE: %v", err)
		}
		must(t, err)
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH); server.Wait() })
	},
}

// readingHost makes a host beside this one that has a name, mounts and a run directory of its own.
func readingHost(t *testing.T, name string) *testenv.Host {
	t.Helper()
	host := testenv.NewHost(t, 1)
	holder := host.Command("unshare", "--mount", "--uts", "sh", "-c", "hostname "+name+" && echo && exec sleep infinity")
	said, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	t.Cleanup(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	if _, err := said.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	host.Enter = func(command string, args []string) (string, []string) {
		enter := []string{"--target", strconv.Itoa(holder.Process.Pid), "--mount", "--uts", "--", command}
		return "nsenter", append(enter, args...)
	}
	return host
}

// TestAnImageThatCanOnlyBeReadStartsJobs on several hosts at once, which say that it is not
// pinned. Neither a job's end nor its next start nor a look at the image needs to write there.
func TestAnImageThatCanOnlyBeReadStartsJobs(t *testing.T) {
	testenv.Parallel(t)
	for name, show := range readOnly {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				disk, at := t.TempDir(), t.TempDir()
				show(t, disk, at)
				var hosts []*testenv.Host
				for n := range 2 {
					hosts = append(hosts, readingHost(t, fmt.Sprint("reader-", n)))
				}
				w := newMixedWorld(t)
				w.dir = filepath.Join(disk, "D")
				original, image := w.imageOf()
				original.says("a trial restore without the GPUs")
				seen := &world{t: t, dir: filepath.Join(at, "D"), work: w.work}
				before := content(t, image)
				if _, err := os.Create(filepath.Join(seen.dir, "new")); err == nil {
					t.Fatal("it can be written to")
				}

				var jobs []*world
				var runs []*run
				for n := range 4 {
					job := worldOn(t, hosts[n%2])
					job.host.Setenv(jobVariable, w.work)
					job.work = filepath.Join(job.dir, "private", "0")
					job.cuda = strings.Replace(w.cuda, w.work, job.work, 1)
					jobs, runs = append(jobs, job), append(runs, job.startFrom(seen))
				}
				for n, job := range jobs {
					runs[n].says("image " + filepath.Join(at, "D/checkpoints/000001") + " is not pinned, and its owner may remove it")
					runs[n].says("from image " + seen.dir)
					job.checks()
				}
				for n, job := range jobs {
					if n%2 == 0 { // without a checkpoint of its own
						runs[n].kill()
						_ = unix.Kill(job.place().Init.PID, unix.SIGKILL)
						runs[n] = job.again()
						runs[n].says("from image " + seen.dir)
					} else {
						runs[n].signal(unix.SIGTERM)
						runs[n].ends(requeue)
						runs[n] = job.again()
						runs[n].resumed("000001")
					}
					job.checks()
				}
				jobs[0].exits(0, "--image starts jobs from it", "inspect", filepath.Join(seen.dir, "checkpoints/000001"))
				for n, r := range runs {
					jobs[n].stop(n)
					r.ends(n)
					jobs[n].exits(0, "removed", "jobs", "rm", jobs[n].dir, "--yes")
				}
				w.checks()
				if after := content(t, image); !maps.Equal(before, after) || len(glob(image, "started-*")) > 0 {
					t.Errorf("the image had %d files, and has %d", len(before), len(after))
				}
				w.stop(0)
				original.ends(0)
			})
		})
	}
}

// TestADumpThatCanOnlyBeReadStartsJobs on several hosts at once, and is restored as the job that it was made of.
func TestADumpThatCanOnlyBeReadStartsJobs(t *testing.T) {
	testenv.Parallel(t)
	for name, show := range readOnly {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				disk, at := t.TempDir(), t.TempDir()
				host := testenv.NewHost(t, 1)
				original := host.Start(1, "--mib", "1") // first: it would inherit what the file server has open
				show(t, disk, at)
				hosts := []*testenv.Host{readingHost(t, "reader-0"), readingHost(t, "reader-1")}
				testenv.Exits(t, host, 0, "dump", "-t", original.Root(), "-D", filepath.Join(disk, "image"))
				image, before := filepath.Join(at, "image"), content(t, disk)
				var jobs []*world
				var runs []*run
				for n := range 4 {
					job := worldOn(t, hosts[n%2])
					job.work = filepath.Join(job.dir, "private", "0")
					job.cuda = job.work
					cmd := job.host.CucriuCommand("run", "--dir", job.dir, "--image", image, "--every", "0")
					jobs, runs = append(jobs, job), append(runs, job.start(cmd, nil))
				}
				for n, job := range jobs {
					runs[n].says("from image " + image)
					job.checks()
				}
				testenv.Exits(t, hosts[0], 0, "restore", "-D", image)
				original.Runs()
				for n, job := range jobs {
					runs[n].signal(unix.SIGTERM)
					runs[n].ends(requeue)
					runs[n] = job.again()
					runs[n].resumed("000001")
					job.checks()
					job.stop(0)
					runs[n].ends(0)
				}
				if after := content(t, disk); !maps.Equal(before, after) {
					t.Errorf("the image had %d files, and has %d", len(before), len(after))
				}
			})
		})
	}
}
