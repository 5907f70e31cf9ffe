package migrate

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// serves is a program beside which another one is executed: it says how often it was asked, and what is in a file.
const serves = `
import os, socket, sys
work, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
mine = socket.socket(socket.AF_UNIX)
mine.bind(work + "/bound")
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((address, port))
listener.listen()
if os.fork() > 0:
    os.execv(sys.argv[4], sys.argv[4:])
asked = 0
while True:
    connection, _ = listener.accept()
    asked += 1
    connection.sendall(f"{asked} {open(work + '/name').read()}".encode())
    connection.close()
`

const (
	inner     = "10.78.0.2" // where the server listens
	innerPort = "8000"
	outerPort = "8001"
)

// original is a job that has stopped after a checkpoint, its newest, from which others are started.
func original(t *testing.T, p *hosts.Pair, on *hosts.Host) *longJob {
	t.Helper()
	on.AddAddress(netip.MustParseAddr(inner))
	const start = `dir=$(eval echo \${$#}); echo original > "$dir/name"; exec python3 -c "$0" "$dir" ` +
		inner + ` ` + innerPort + ` "$@"`
	j := startJobUnder(t, p, on, []string{"sh", "-c", start, serves}, "--name", "original")
	on.Run("cucriu", "jobs", "checkpoint", "original")
	on.Run("cucriu", "jobs", "stop", "original")
	return j
}

// startFromImage starts a job from an image on a host, with a private copy of the directory in which it works.
func startFromImage(t *testing.T, image *longJob, on *hosts.Host, flags ...string) *longJob {
	t.Helper()
	j := &longJob{t: t, pair: image.pair, dir: image.dir + "-copy", isFromImage: true}
	j.args = append([]string{
		"run", "--dir", j.dir, "--name", "train", "--every", "0", "--moved-status", "33",
		"--image", image.dir, "--private", image.Dir,
	}, flags...)
	// The last argument is the directory of a work of its own, which it does not have.
	const without = `import os, sys; os.execvp("cucriu", ["cucriu"] + sys.argv[1:-1])`
	j.Job = on.StartProgram("python3", append([]string{"-c", without}, j.args...)...)
	j.Dir, j.Dirs = image.Dir, []string{filepath.Join(j.dir, "private", "0")}
	j.begins(on)
	return j
}

// own is the path on this machine of a file that the job has of its own.
func (j *longJob) own(on *hosts.Host, base string) string {
	return on.Path(filepath.Join(j.dir, "private", "0", base))
}

// asks asks the server of the job, at its published port, until it answers.
func (j *longJob) asks(on *hosts.Host, want string) {
	j.t.Helper()
	var got []byte
	testenv.Eventually(j.t, testenv.Soon, "the server answers", func() bool {
		connection, err := on.Dial("tcp", "127.0.0.1:"+outerPort)
		if err != nil {
			return false
		}
		defer connection.Close()
		got, err = io.ReadAll(connection)
		return err == nil && len(got) > 0
	})
	if string(got) != want {
		j.t.Errorf("the server on host %s says %q, want %q", on.Name, got, want)
	}
}

// TestAJobFromAnImageMovesThereAndBack with its files and its port, and without its image.
func TestAJobFromAnImageMovesThereAndBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		image := original(t, p, p.A)
		j := startFromImage(t, image, p.A, "--publish", outerPort+":"+innerPort)
		testenv.WriteFile(t, j.own(p.A, "name"), "mine")
		j.asks(p.A, "1 mine")
		closed := filepath.Join("deep", "er")
		must := func(errs ...error) {
			t.Helper()
			for _, err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		must(os.MkdirAll(j.own(p.A, closed), 0o700), os.Symlink("/etc/passwd", j.own(p.A, "link")))
		must(os.Chown(j.own(p.A, closed), 12, 34))
		testenv.WriteFile(t, j.own(p.A, closed+"/closed"), "closed")
		must(os.Link(j.own(p.A, closed+"/closed"), j.own(p.A, "too")), unix.Mkfifo(j.own(p.A, "pipe"), 0o600))
		must(os.Remove(j.own(p.A, "name")), os.WriteFile(j.own(p.A, "name"), []byte("my own"), 0o600))
		j.cucriuFails(p.A, 3, []string{"jobs", "rm", "original", "--yes"}, "jobs were started from its checkpoint")
		stop := j.watch()

		j.move(p.A, p.B)
		j.asks(p.B, "2 my own")
		if _, err := p.A.Dial("tcp", "127.0.0.1:"+outerPort); err == nil {
			t.Error("the source still has the port")
		}
		var dir, first, second, pipe unix.Stat_t
		must(unix.Lstat(j.own(p.B, closed), &dir), unix.Lstat(j.own(p.B, closed+"/closed"), &first),
			unix.Lstat(j.own(p.B, "too"), &second), unix.Lstat(j.own(p.B, "pipe"), &pipe))
		link, err := os.Readlink(j.own(p.B, "link"))
		data, readErr := os.ReadFile(j.own(p.B, "too"))
		if err != nil || readErr != nil || link != "/etc/passwd" || string(data) != "closed" {
			t.Errorf("%s %q %v %v", link, data, err, readErr)
		}
		if dir.Uid != 12 || dir.Gid != 34 || first.Ino != second.Ino || pipe.Mode != unix.S_IFIFO|0o600 {
			t.Errorf("%+v %+v %+v %+v", dir, first, second, pipe)
		}
		p.B.Run("cucriu", "jobs", "checkpoint", "train")
		p.B.Run("cucriu", "jobs", "verify", "train")

		must(os.Remove(j.own(p.B, "too")), os.WriteFile(j.own(p.B, "name"), []byte("another"), 0o600))
		j.move(p.B, p.A)
		j.asks(p.A, "3 another")
		if _, err := os.Lstat(j.own(p.A, "too")); !os.IsNotExist(err) {
			t.Errorf("what was removed there is here again: %v", err)
		}
		// It does not need the image any more, but sees its own directory where that of the image is.
		j.cucriuFails(p.A, 3, []string{"jobs", "rm", "original", "--yes"}, "train, which runs, sees files of its own at "+image.dir)
		j.move(p.A, p.B)
		p.A.Run("cucriu", "jobs", "rm", "original", "--yes")
		stop()
		for _, h := range p.Hosts() {
			if left := h.Run("find", j.dir, "-maxdepth", "1", "-name", ".?*"); strings.TrimSpace(left) != "" {
				t.Errorf("host %s has %s", h.Name, left)
			}
		}
		p.B.Run("cucriu", "jobs", "stop", "train")
		p.B.Run("sh", "-c", "rm -r "+j.dir+"/checkpoints/*")
		j.cucriuFails(p.B, 125, j.args, "checkpoint")
		p.B.Run("rm", j.dir+"/events.jsonl") // which tells that there were checkpoints
		j.cucriuFails(p.B, 3, j.args, "image "+image.dir, "it is gone, and the job has no checkpoint of its own")
	})
}

// TestAJobFromADumpMovesThereAndBack as one from a checkpoint, and one from a checkpoint of that as well.
func TestAJobFromADumpMovesThereAndBack(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		image := &longJob{Job: p.A.Start(1, "--mib", "8"), t: t, pair: p, dir: "/tmp/images"}
		p.A.Run("cucriu", "dump", "-t", image.Root(), "-D", image.dir)
		j := startFromImage(t, image, p.A)
		j.move(p.A, p.B)
		j.move(p.B, p.A)
		p.A.Run("cucriu", "jobs", "stop", "train")
		next := startFromImage(t, j, p.A, "--name", "next")
		next.move(p.A, p.B)
		p.A.Run("cucriu", "jobs", "rm", "train", "--yes")
		next.move(p.B, p.A)
	})
}

// TestAJobFromAnImageIsOnOneHostWhereverAProgramIsKilled, with the files that are its own.
func TestAJobFromAnImageIsOnOneHostWhereverAProgramIsKilled(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startFromImage(t, original(t, p, p.A), p.A, "--publish", outerPort+":"+innerPort)
		stop := j.watch()
		from, to, asked := p.A, p.B, 0
		steps := []jobStep{{"job.packed", false, false}, {"job.unpacked", true, false}}
		for i, s := range append(steps, jobSteps...) {
			// Nothing has this open, so only the move brings it along.
			testenv.WriteFile(t, j.own(from, "name.new"), strconv.Itoa(i))
			if err := os.Rename(j.own(from, "name.new"), j.own(from, "name")); err != nil {
				t.Fatal(err)
			}
			from, to = j.killedAt(from, to, s)
			asked++
			if j.asks(from, fmt.Sprintf("%d %d", asked, i)); t.Failed() {
				return
			}
		}
		j.at(from, to, to, "job.returned", "kill", "--start", "false")
		j.recover()
		j.settled(from, to)
		j.move(from, to)
		stop()
	})
}

// TestAJobFromAnImageThatIsTakenHasTheFilesOfItsCheckpoint: a move back has left a newer one, without the files that
// the job had then, before the other host was lost.
func TestAJobFromAnImageThatIsTakenHasTheFilesOfItsCheckpoint(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		j := startFromImage(t, original(t, p, p.A), p.A, "--publish", outerPort+":"+innerPort)
		testenv.WriteFile(t, j.own(p.A, "name"), "first")
		j.asks(p.A, "1 first")
		// A supervisor of an earlier version does not remove the record if the job stays.
		asOf := filepath.Join(j.dir, "private", "as-of.json")
		p.A.UseFailpoint("job.ready=run " + testenv.Script(t, "test ! -e "+p.A.Path(asOf)))
		j.move(p.A, p.B) // in 000002
		p.A.Setenv("CUCRIU_FAILPOINT", "")
		if !testenv.Exists(p.A.Path(asOf)) || testenv.Exists(p.B.Path(asOf)) {
			t.Error("the host that the job has left has no record, or that where it runs has one")
		}
		testenv.WriteFile(t, j.own(p.B, "name"), "later")
		j.asks(p.B, "2 later")
		p.B.Run("cucriu", "jobs", "checkpoint", "train")
		j.at(p.B, p.A, p.B, "job.ahead", "kill")
		p.B.PowerOff()
		defer p.B.Boot()
		awaitEnd(t, receives(p.A)...)
		if !testenv.Exists(p.A.Path(filepath.Join(j.dir, "checkpoints", "000003"))) {
			t.Fatal("nothing newer has come, so the test shows nothing")
		}
		p.A.Run("cucriu", "recover", "--take", j.moveAt(p.A).ID)
		j.again(p.A)
		j.is(p.A)
		if from := j.resumedFrom(p.A); from != "000002" {
			t.Errorf("the job has resumed from checkpoint %s", from)
		}
		j.asks(p.A, "2 first")
		p.A.Run("cucriu", "jobs", "checkpoint", "train")
		p.A.Run("cucriu", "jobs", "stop", "train")
		j.again(p.A)
		if j.asks(p.A, "3 first"); j.resumedFrom(p.A) <= "000003" {
			t.Error("what the job has done since was given up, too")
		}
	})
}

// TestWhatAJobFromAnImageLacksThereIsKnownBeforehand: it is not touched.
func TestWhatAJobFromAnImageLacksThereIsKnownBeforehand(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{OneBootID: true})
		image := original(t, p, p.A)
		isUntouched := func(j *longJob, says string) {
			t.Helper()
			if out := j.fails(p.A, p.B, 3, says); strings.Contains(out, "stays here") {
				t.Errorf("it was touched: %s", out)
			}
			j.is(p.A)
		}
		refused := func(j *longJob, says string) {
			t.Helper()
			if isUntouched(j, says); testenv.Exists(p.B.Path(j.dir)) {
				t.Errorf("%s is there", j.dir)
			}
		}
		moves := func(j *longJob) {
			t.Helper()
			j.move(p.A, p.B)
			for _, h := range p.Hosts() {
				if h == p.B {
					h.Run("cucriu", "jobs", "stop", j.dir)
				}
				h.Run("cucriu", "jobs", "rm", j.dir, "--yes")
			}
		}
		port := outerPort + ":" + innerPort

		address := netip.MustParseAddr("10.78.0.1")
		p.A.AddAddress(address)
		j := startFromImage(t, image, p.A, "--publish", port, "--publish", address.String()+":8002:"+innerPort)
		refused(j, "publish "+address.String()+":8002:"+innerPort)
		p.B.AddAddress(address)
		listener, err := p.B.Listen("tcp", "0.0.0.0:"+outerPort)
		if err != nil {
			t.Fatal(err)
		}
		refused(j, "port "+outerPort+" of this host is in use")
		listener.Close()
		if err := unix.Mknod(j.own(p.A, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
		refused(j, "null is a device")
		if err := os.Remove(j.own(p.A, "null")); err != nil {
			t.Fatal(err)
		}
		testenv.WriteFile(t, p.B.Path(image.Dir), "no directory")
		refused(j, image.Dir+" is no directory on this host")
		if err := os.Remove(p.B.Path(image.Dir)); err != nil {
			t.Fatal(err)
		}
		p.A.Run("cucriu", "jobs", "stop", "train")
		p.A.Run("cucriu", "jobs", "rm", "train", "--yes")

		p.A.Run("ip", "netns", "add", "prepared")
		p.A.Run("ip", "-n", "prepared", "link", "set", "lo", "up")
		p.A.Run("ip", "-n", "prepared", "address", "add", inner, "dev", "lo")
		j = startFromImage(t, image, p.A, "--net", "prepared")
		refused(j, "there is no network namespace /run/netns/prepared")
		p.B.Run("ip", "netns", "add", "prepared")
		p.B.Run("ip", "-n", "prepared", "link", "set", "lo", "up")
		isUntouched(j, inner)
		p.B.Run("ip", "-n", "prepared", "address", "add", inner, "dev", "lo")
		moves(j)

		j = startFromImage(t, image, p.A, "--net", "host")
		isUntouched(j, inner)
		p.B.AddAddress(netip.MustParseAddr(inner))
		if listener, err = p.B.Listen("tcp", inner+":"+innerPort); err != nil {
			t.Fatal(err)
		}
		isUntouched(j, inner+":"+innerPort+", which another program uses")
		listener.Close()
		moves(j)

		j = startFromImage(t, image, p.A)
		if err := os.WriteFile(j.own(p.A, "large"), make([]byte, 32<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		p.B.SmallDisk(j.dir, "64m") // which has room for the checkpoint
		if err := os.Chmod(p.B.Path(j.dir), 0o700); err != nil {
			t.Fatal(err)
		}
		isUntouched(j, "has room for")
	})
}
