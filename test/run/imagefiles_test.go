package run

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/testenv"
)

// program is a job in Python. Its folders are work, which is private, and shared, of which the command says nothing. It
// defines tick, which fails if anything is not as the program has left it.
type program struct {
	name, code string
	// prepare is a script of the host, before the job begins.
	prepare string
	flags   []string // of all starts
	first   []string // of the first one
	refused string   // what a start from the image says; "" if there are to be jobs
	// after is a script that each job's directories must pass at the end.
	after string
}

const prelude = `import contextlib, fcntl, json, os, socket, struct, subprocess, sys, time
work, shared, own = sys.argv[1:4]
os.chdir(work)
def fails(with_, do):
    try: do()
    except with_: return True
    return False
`

const loop = `
n, bad, what = 0, 0, ""
while True:
    n += 1
    try:
        tick(n)
    except Exception as e:
        bad, what = bad + 1, what or f"tick {n}: {e!r}"
    with open(work + "/status.new", "w") as status:
        json.dump({"tick": n, "bad": bad, "what": what}, status)
    os.rename(work + "/status.new", work + "/status")
    if os.path.exists(work + "/stop"):
        os._exit(int(open(work + "/stop").read()))
    time.sleep(0.05)
`

// watched makes a file in a directory with a watch, until the event comes: one that nobody had read when the job was
// dumped is lost.
const watched = `
def watched(prefix, n):
    for name in f"new{n}", f"again{n}":
        open(prefix + name, "w").close()
        with contextlib.suppress(FileNotFoundError):  # another job from the image is at the same step
            os.unlink(prefix + name)
        try:
            assert name.encode() in os.read(watch, 1 << 16)
            return
        except BlockingIOError:
            pass
    raise AssertionError("no event")
`

var programs = []program{
	{name: "a database in WAL mode", code: `
import sqlite3
db = sqlite3.connect("db", isolation_level=None)
db.execute("pragma journal_mode=wal")
db.execute("create table t(n integer)")
def tick(n):
    db.execute("insert into t values (?)", (n,))
    rows = db.execute("select count(*), max(n) from t").fetchone()
    assert rows == (n, n), rows
    assert n % 5 or db.execute("pragma integrity_check").fetchone() == ("ok",)
`, after: `python3 -c 'import sqlite3, sys
assert sqlite3.connect(sys.argv[1]).execute("pragma integrity_check").fetchone() == ("ok",)' "$1/db"`},
	{name: "a log that rotates", code: `
log = open("log", "a")
def tick(n):
    global log
    print(n, file=log, flush=True)
    assert os.fstat(log.fileno()).st_ino == os.stat("log").st_ino
    assert open("log").read().endswith(f"{n}\n")
    if n % 4 == 0:
        os.rename("log", "log.1")
        log = open("log", "a")
`},
	{name: "a PID file that is locked", code: `
pid = open("pid", "w")
print(os.getpid(), file=pid, flush=True)
fcntl.flock(pid, fcntl.LOCK_EX | fcntl.LOCK_NB)
record = open("record", "w")
fcntl.lockf(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
def tick(n):
    assert open("pid").read() == f"{os.getpid()}\n"
    with open("pid") as f:
        assert fails(BlockingIOError, lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB))
    other = "import fcntl; fcntl.lockf(open('record', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert n % 5 or subprocess.call([sys.executable, "-c", other], stderr=subprocess.DEVNULL) == 1
`},
	{name: "a lock on a file that it only reads", code: `
open(shared + "/lock", "w").close()
lock = open(shared + "/lock")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
def tick(n):
    with open(shared + "/lock") as f:
        assert fails(BlockingIOError, lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB))
`},
	{name: "files without a name", code: `
import tempfile
mine, other = open("gone", "w+"), open(shared + "/gone", "w+")
os.unlink("gone")
os.unlink(shared + "/gone")
third = tempfile.TemporaryFile(dir=shared)
third.write(b"\0" * 8)
def tick(n):
    for f in mine, other:
        f.seek(0)
        assert n == 1 or f.read() == str(n - 1)
        f.seek(0)
        f.write(str(n))
        f.flush()
    third.seek(0)
    assert n == 1 or struct.unpack("q", third.read(8))[0] == n - 1
    third.seek(0)
    third.write(struct.pack("q", n))
    third.flush()
`},
	{name: "UNIX sockets", code: `
server = socket.socket(socket.AF_UNIX)
server.bind(shared + "/socket")
server.listen()
inside = socket.socketpair()
old = socket.socket(socket.AF_UNIX)
old.connect(shared + "/socket")
peer = server.accept()[0]
def tick(n):
    client = socket.socket(socket.AF_UNIX)
    client.connect(shared + "/socket")
    end = server.accept()[0]
    for a, b in (client, end), (end, client), inside, (old, peer):
        a.sendall(b"%d" % n)
        assert b.recv(100) == b"%d" % n
    client.close(); end.close()
`},
	{name: "a named pipe", code: `
os.mkfifo(shared + "/pipe")
pipe = os.open(shared + "/pipe", os.O_RDWR | os.O_NONBLOCK)
os.write(pipe, b"%08d" % 0)
def tick(n):
    got = os.read(pipe, 100)
    assert got == b"%08d" % (n - 1), got
    os.write(pipe, b"%08d" % n)
`},
	{name: "a watch on a private directory", code: `
import ctypes
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, work.encode(), 0x100) > 0
` + watched + `
def tick(n):
    watched("", n)
`},
	{name: "a watch on a shared directory", code: `
import ctypes
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, shared.encode(), 0x100) > 0
` + watched + `
def tick(n):
    watched(shared + "/", n)
`},
	{name: "shared mappings", code: `
import mmap
open(shared + "/map", "wb").write(b"\0" * 8192)
file = open(shared + "/map", "r+b")
disk = mmap.mmap(file.fileno(), 8192)
file.close()
open("/dev/shm/map", "wb").write(b"\0" * 8192)
memory = open("/dev/shm/map", "r+b")
shm = mmap.mmap(memory.fileno(), 8192)
def tick(n):
    for m, path in (disk, shared + "/map"), (shm, "/dev/shm/map"):
        assert struct.unpack("q", m[:8])[0] == n - 1
        m[:8] = struct.pack("q", n)
        assert struct.unpack("q", open(path, "rb").read(8))[0] == n
`},
	{name: "a working directory that is gone", code: `
os.mkdir(shared + "/gone")
os.chdir(shared + "/gone")
os.rmdir(shared + "/gone")
def tick(n):
    assert fails(FileNotFoundError, os.getcwd)
`},
	{name: "workers that share a socket", code: `
server = socket.socket(socket.AF_UNIX)
server.bind("socket")
server.listen()
for worker in range(3):
    if os.fork() == 0:
        log = open("workers", "a")
        while True:
            end = server.accept()[0]
            end.sendall(end.recv(100))
            end.close()
            print(os.getpid(), file=log, flush=True)
def tick(n):
    for _ in range(3):
        client = socket.socket(socket.AF_UNIX)
        client.connect("socket")
        client.sendall(b"%d" % n)
        assert client.recv(100) == b"%d" % n
        client.close()
`},
	{name: "links into private directories", code: `
os.symlink(work, shared + "/work")
os.symlink(shared + "/work/file", "self")
log = open(shared + "/work/log", "a")
def tick(n):
    print(n, file=open(shared + "/work/file", "w"))
    assert open("file").read() == open("self").read() == f"{n}\n"
`},
	{name: "hard links", code: `
a = open("a", "w+")
os.link("a", "b")
b = open("b")
c = open("c", "w+")
os.link("c", "d")
def tick(n):
    for f, other in (a, "b"), (c, "d"):
        f.seek(0)
        print(n, file=f, flush=True)
        assert open(other).read() == f"{n}\n"
    b.seek(0)
    assert b.read() == f"{n}\n"
`},
	{name: "hard links in two directories", code: `
a = open("a", "w+")
os.link("a", shared + "/b")
def tick(n):
    a.seek(0)
    print(n, file=a, flush=True)
    assert open(shared + "/b").read() == f"{n}\n"
`, refused: "/a has a name elsewhere"},
	{name: "a hard link whose name is gone", code: `
a = open("a", "w+")
os.link("a", "b")
os.unlink("a")
def tick(n):
    a.seek(0)
    print(n, file=a, flush=True)
    assert open("b").read() == f"{n}\n"
`},
	{name: "a sparse file", code: `
f = open("sparse", "w+b")
f.truncate(1 << 33)
closed = open("closed", "wb")
closed.truncate(1 << 33)
closed.close()
def tick(n):
    f.seek(1 << 32)
    assert n == 1 or struct.unpack("q", f.read(8))[0] == n - 1
    f.seek(1 << 32)
    f.write(struct.pack("q", n))
    f.flush()
    for name in "sparse", "closed":
        assert os.stat(name).st_size == 1 << 33 and os.stat(name).st_blocks < 1000, os.stat(name)
`},
	{name: "a directory in which something is mounted", prepare: `mkdir "$1/sub"
mount --bind "$2" "$1/sub"
echo text >"$2/file"`, code: `
def tick(n):
    assert open("sub/file").read() == "text\n"
`, refused: "/sub is mounted in it"},
	{name: "attributes", prepare: `cd "$1" && cp /bin/true . && mkdir -m 2750 d && chown 5:6 d`, code: `
os.setxattr("true", "user.name", b"value")
os.setxattr("true", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
os.setxattr("d", "system.posix_acl_access", bytes.fromhex(
    "0200000001000700ffffffff020004000700000004000500ffffffff10000500ffffffff20000000ffffffff"))
log = open("log", "a")
def attributes():
    for path in "true", "d":
        of = os.stat(path)
        yield of.st_mode, of.st_uid, of.st_gid, [(x, os.getxattr(path, x)) for x in sorted(os.listxattr(path))]
before = list(attributes())
def tick(n):
    assert list(attributes()) == before, (list(attributes()), before)
`},
	{name: "directories of another user", prepare: `chown -R 65534 "$1" "$2" && chmod 700 "$1" && chmod 1733 "$2"`, code: `
log = open(shared + "/log", "a+")
def tick(n):
    assert os.stat(work).st_uid == os.stat("program.py").st_uid == os.stat(shared).st_uid == 65534
    assert os.stat(shared).st_mode & 0o7777 == 0o1733
    print(n, file=log, flush=True)
`},
	{name: "ten thousand files", prepare: `cd "$1" && mkdir d && cd d && seq 10000 | split -l 1 -a 4 -`, code: `
log = open("log", "a")
def tick(n):
    assert n % 10 or len(os.listdir("d")) == 10000
`},
	{name: "too much", prepare: `head -c 3M /dev/zero >"$1/large"`, code: `
log = open("log", "a")
def tick(n): pass
`, flags: []string{"--files-limit", "2MiB"}, refused: "it holds more than 2.0 MiB"},
	{name: "the directory of the job", code: `
os.makedirs(own + "/data/deep")
os.chdir(own + "/data")
log, last = open("log", "a"), open("deep/last", "w+")
open("closed", "w").write("text")
def tick(n):
    print(n, file=log, flush=True)
    last.seek(0)
    assert n == 1 or last.read() == str(n - 1)
    last.seek(0)
    last.write(str(n))
    last.flush()
    assert os.getcwd() == own + "/data"
    assert open("closed").read() == "text"
`, refused: "/data is missing"},
	{name: "a file that checkpoints leave out", first: []string{"--not-saved", "SHARED/log"}, code: `
log = open(shared + "/log", "a")
size = jumps = 0
def tick(n):
    global size, jumps
    before = size
    print(n, file=log, flush=True)
    size = os.stat(shared + "/log").st_size
    jumps += size != before + len(f"{n}\n")
    assert jumps < 2 # as the copy is newer than the checkpoint
`},
	{name: "an open directory", code: `
fd = os.open(".", os.O_DIRECTORY)
other = os.open(shared, os.O_DIRECTORY)
log = open("log", "a")
def tick(n):
    os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    assert os.path.exists(work + "/new")
    os.unlink(work + "/new")
    assert os.stat(shared).st_ino == os.fstat(other).st_ino
`},
	{name: "a terminal of its own", code: `
import pty
master, slave = pty.openpty()
if os.fork() == 0:
    os.setsid()
    for fd in range(3): os.dup2(slave, fd)
    while True: os.write(1, os.read(0, 100))
def tick(n):
    os.write(master, b"%d\n" % n)
    got = b""
    while not got.endswith(b"%d\r\n" % n * 2): got += os.read(master, 100)
`},
	{name: "files that come and go", code: `
import threading
def churn():
    for i in range(1 << 30):
        open(f"new{i % 100}", "w").write("x" * 100)
        os.rename(f"new{i % 100}", f"old{i % 100}")
        if os.path.exists(f"old{(i - 50) % 100}"):
            os.unlink(f"old{(i - 50) % 100}")
threading.Thread(target=churn, daemon=True).start()
def tick(n): pass
`},
}

// TestFilesOfAnImage beside the one that the image was made of, and do not see each other's.
func TestFilesOfAnImage(t *testing.T) {
	testenv.Parallel(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) { testenv.Simulated(t, p.runsFromAnImage) })
	}
}

func (p program) runsFromAnImage(t *testing.T) {
	w := emptyWorld(t)
	shared := t.TempDir()
	script := func(text string, args ...string) {
		t.Helper()
		if out, err := exec.Command("sh", append([]string{"-ec", text, "sh"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", text, err, out)
		}
	}
	file := filepath.Join(w.work, "program.py")
	testenv.WriteFile(t, file, prelude+p.code+loop)
	script(p.prepare, w.work, shared)
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(w.work, "sub"), unix.MNT_DETACH) })
	w.command = []string{"python3", file, w.work, shared, w.dir}
	w.flags = append([]string{"--every", "0"}, p.flags...)
	var first []string
	for _, flag := range p.first {
		first = append(first, strings.Replace(flag, "SHARED", shared, 1))
	}
	original := w.run(first...)
	original.awaits("it ticks", func() bool { return w.report().Tick > 2 })
	w.intact()
	if out, err := w.host.Cucriu("jobs", "checkpoint", w.dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := filepath.Join(w.dir, "checkpoints", w.newest())
	before := content(t, image)
	w.ticks(5)
	var jobs []*world
	var runs []*run
	for range 2 {
		job := w.from()
		jobs, runs = append(jobs, job), append(runs, job.startFrom(w, p.flags...))
	}
	for i, job := range jobs {
		if p.refused != "" {
			runs[i].ends(3, p.refused)
			if entries, _ := os.ReadDir(job.dir); len(entries) > 0 {
				t.Errorf("left over: %v", entries)
			}
			continue
		}
		runs[i].says("from image")
		runs[i].ticksOn()
	}
	original.ticksOn()
	after := content(t, image) // to which its owner may have added what it has found out
	maps.DeleteFunc(after, func(path, _ string) bool { _, had := before[path]; return !had })
	if !maps.Equal(before, after) {
		t.Errorf("the image has changed")
	}
	if p.refused != "" {
		w.stop(0)
		original.ends(0)
		return
	}
	runs[0].signal(unix.SIGTERM)
	runs[0].ends(requeue)
	runs[0] = jobs[0].again()
	runs[0].resumed("000001")
	for i, job := range append(jobs, w) {
		of := append(runs, original)[i]
		of.ticksOn()
		job.stop(i)
		of.ends(i)
		script(p.after, job.work)
	}
	w.noProcesses()
}

// ticksOn is [world.ticks] for a job that must not end.
func (r *run) ticksOn() {
	r.w.t.Helper()
	from := r.w.report().Tick
	r.awaits("the job ticks on", func() bool { return r.w.report().Tick > from+2 })
	r.w.intact()
}

// TestStreamsOfAnImage that lead to somebody else lead to the output of the job. With a terminal or a socket nothing
// becomes a long job that an image could be made of.
func TestStreamsOfAnImage(t *testing.T) {
	testenv.Parallel(t)
	for name, test := range map[string]struct{ streams, refused, kept string }{
		"a file":            {`exec "$@" </dev/null >"$0/streams" 2>&1`, "", "streams"},
		"pipes":             {`sleep 1000 | "$@" 2>&1 | cat >"$0/streams"`, "", ""},
		"one pipe for each": {`{ sleep 1000 | "$@" | cat >"$0/streams"; } 2>&1 | cat >"$0/errors"`, "", ""},
		"no streams":        {`exec "$@" <&- >&- 2>&-`, "", "none"},
		"a terminal":        {`exec script -qc "$*" /dev/null </dev/null >/dev/null`, "it has a terminal open", ""},
		"a socket":          {`exec python3 -c "$SOCKET" "$@"`, "unix-socket: ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := emptyWorld(t)
				file := filepath.Join(w.work, "program.py")
				testenv.WriteFile(t, file, prelude+`
def tick(n):
    for stream in sys.stdout, sys.stderr:
        if stream: print("tick", n, file=stream, flush=True)
`+loop)
				cmd := exec.Command("setsid", "sh", "-c", test.streams, w.work, "python3", file, w.work, "-", "-")
				cmd.Env = append(os.Environ(), `SOCKET=
import socket, subprocess, sys
a, b = socket.socketpair()
child = subprocess.Popen(sys.argv[1:], stdin=b, stdout=b, stderr=b)
while a.recv(100): pass
`)
				must(t, cmd.Start())
				t.Cleanup(func() {
					_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
					_ = cmd.Wait()
				})
				testenv.Eventually(t, testenv.Soon, "the job ticks", func() bool { return w.report().Tick > 2 })
				running := slices.DeleteFunc(testenv.Running("python3"), func(pid int) bool {
					args := testenv.CommandLine(pid)
					return len(args) < 2 || args[1] != file
				})
				w.flags = []string{"--every", "0"}
				original := w.adopts(running[0])
				if test.refused != "" {
					original.ends(125, test.refused)
					return
				}
				original.says("is now supervised")
				w.checkpoint()
				for range 2 {
					job := w.from()
					r := job.startFrom(w)
					r.says("from image") // until then the copied report looks like ticks of its own
					r.ticksOn()
					log := filepath.Join(job.dir, "output.log")
					if test.kept == "" {
						r.says("this one writes to " + log)
					}
					if out, _ := os.ReadFile(log); strings.Contains(string(out), "tick ") != (test.kept == "") {
						t.Errorf("output: %q", out)
					}
					job.stop(0)
					r.ends(0)
				}
				original.ticksOn()
				w.stop(0)
				original.ends(0)
			})
		})
	}
}
