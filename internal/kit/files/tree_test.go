package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// describeTree lists all that is known of what is in a directory.
func describeTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := scene{dir: dir, shm: dir}.describe(t)
	for path := range all {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(filepath.Dir(dir), path), &st))
		all[path] += fmt.Sprintf(" owner %d:%d links %d", st.Uid, st.Gid, st.Nlink)
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target, err := os.Readlink(filepath.Join(filepath.Dir(dir), path))
			must(t, err)
			all[path] += " to " + target
		} else {
			all[path] += fmt.Sprintf(" time %d", st.Mtim.Nano())
		}
	}
	return all
}

func TestAllOfTheJobsOwnDirectoriesComesBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		top := tempDir(t)
		shm, tmp := filepath.Join(top, "shm"), filepath.Join(top, "tmp")
		testenv.SmallDisk(t, shm, "64m")
		testenv.SmallDisk(t, tmp, "64m")
		at := func(base string) string { return filepath.Join(shm, base) }
		must(t, os.MkdirAll(at("one/two"), 0o755))
		write(t, at("one/two/file"), "in a directory")
		write(t, at("sem.x (deleted)"), "a removed name")
		write(t, at("new\nline"), "new line")
		write(t, at("not\xffUTF-8"), "not UTF-8")
		write(t, at("empty"), "")
		write(t, at("suid"), "suid")
		must(t, os.Chown(at("suid"), 12, 34))
		must(t, unix.Chmod(at("suid"), 0o6711))
		must(t, os.Link(at("suid"), at("one/suid too")))
		must(t, errors.Join(os.Symlink("/etc/passwd", at("link")), os.Symlink("one", at("link to one")), os.Lchown(at("link"), 12, 34)))
		must(t, unix.Mkfifo(at("pipe"), 0o622))
		must(t, unix.Chmod(at("pipe"), 0o622))
		sparse, err := os.Create(at("sparse"))
		must(t, err)
		_, err = sparse.WriteAt([]byte("end"), 1<<30)
		must(t, errors.Join(err, sparse.Close()))
		socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		must(t, err)
		defer unix.Close(socket)
		must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: at("socket")}))
		must(t, os.Mkdir(at("mounted"), 0o755))
		testenv.SmallDisk(t, at("mounted"), "1m")
		write(t, at("mounted/file"), "on another file system")
		write(t, filepath.Join(tmp, "file"), "of /tmp")
		must(t, unix.Chmod(at("one/two"), 0o1700))
		for _, base := range []string{"one/two/file", "one/two", "one"} {
			must(t, os.Chtimes(at(base), time.Time{}, time.Unix(1e9, 5)))
		}
		root := startJob(t, jobFile(at("one/two/file"), unix.O_RDWR))

		checkpoint := save(t, root, Options{Shm: shm, PrivateTmp: tmp})
		if saved := savedBytes(t, checkpoint); saved > 1<<20 {
			t.Errorf("%d bytes were saved", saved)
		}
		must(t, unix.Unmount(at("mounted"), 0))
		must(t, errors.Join(os.Remove(at("mounted")), os.Remove(at("socket"))))
		wantShm, wantTmp := describeTree(t, shm), describeTree(t, tmp)
		must(t, errors.Join(unix.Unmount(shm, unix.MNT_DETACH), unix.Unmount(tmp, unix.MNT_DETACH)))
		testenv.SmallDisk(t, shm, "64m")
		testenv.SmallDisk(t, tmp, "64m")
		must(t, os.Mkdir(at("mounted"), 0o755))
		_, err = PutBack(t.Context(), checkpoint, PutBackOptions{})
		checkRefusal(t, shm, "the job's own DIR: it is not empty: it holds mounted", err)
		must(t, os.Remove(at("mounted")))

		changes, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
		if must(t, err); len(changes) > 0 {
			t.Errorf("%v", changes)
		}
		if diff := cmp.Diff(wantShm, describeTree(t, shm)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(wantTmp, describeTree(t, tmp)); diff != "" {
			t.Error(diff)
		}
		var st unix.Stat_t
		must(t, unix.Stat(at("sparse"), &st))
		if st.Blocks*512 > 1<<20 {
			t.Errorf("the sparse file has lost its holes: %+v", st)
		}
	})
}

// TestManySmallFilesOfSharedMemory: a DataLoader can have thousands.
func TestManySmallFilesOfSharedMemory(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		const files = 10000
		shm := filepath.Join(tempDir(t), "shm")
		testenv.SmallDisk(t, shm, "256m")
		for i := range files {
			write(t, filepath.Join(shm, fmt.Sprint("file ", i)), strings.Repeat(fmt.Sprintf("%6d", i), 1000))
		}
		root := startJob(t)
		began := time.Now()
		checkpoint := save(t, root, Options{Shm: shm})
		saved := time.Now()
		want := describeTree(t, shm)
		must(t, unix.Unmount(shm, unix.MNT_DETACH))
		testenv.SmallDisk(t, shm, "256m")
		beganBack := time.Now()
		_, err := PutBack(t.Context(), checkpoint, PutBackOptions{})
		must(t, err)
		t.Logf("foreseen and saved in %v, put back in %v", saved.Sub(began), time.Since(beganBack))
		if diff := cmp.Diff(want, describeTree(t, shm)); diff != "" {
			t.Error(diff[:min(len(diff), 1000)])
		}
	})
}
