"""Changes the layout of its memory once, in many ways, when there is a file DIR/change: areas, pages, and processes come, go and
move. Each process knows what every page must be, and compares them all when there is a file DIR/check."""
import ctypes
import mmap
import os
import sys
import threading
import time

PAGE = 4096
READ, ANYTHING = 1, 3
SHARED, PRIVATE, FIXED, ANONYMOUS, GROWSDOWN, LOCKED, NORESERVE = 1, 2, 0x10, 0x20, 0x100, 0x2000, 0x4000
DONTNEED, REMOVE, HUGEPAGE, GUARD, NOGUARD = 4, 9, 14, 102, 103
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
for f in libc.madvise, libc.mprotect: f.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.sbrk.argtypes = [ctypes.c_long]
directory = sys.argv[-1]


def done(result, what="a call"):
    if result in (-1, ctypes.c_void_p(-1).value): raise OSError(ctypes.get_errno(), "%s: %s" % (what, os.strerror(ctypes.get_errno())))
    return result


ZERO, UNREADABLE = bytes(PAGE), None


def content(want):
    """What a page must be is its bytes, or a seed and the number of the page."""
    return (b"%08d %08d " % want * 228)[:PAGE] if isinstance(want, tuple) else want


class Area:
    """Knows what each of its pages must be."""

    def __init__(self, pages, at, flags=PRIVATE | ANONYMOUS, fd=-1, prot=ANYTHING):
        self.at = done(libc.mmap(at, pages * PAGE, prot, flags | FIXED, fd, 0), "mmap")
        self.want = [ZERO] * pages

    def fill(self, seed, pages=None):
        for i in range(len(self.want)) if pages is None else pages: self.put(i, (seed, i))
        return self

    def put(self, i, want):
        ctypes.memmove(self.at + i * PAGE, content(want), PAGE)
        self.want[i] = want

    def advise(self, first, end, advice):
        if libc.madvise(self.at + first * PAGE, (end - first) * PAGE, advice) and advice in (GUARD, NOGUARD): return  # before Linux 6.13
        if advice in (DONTNEED, REMOVE, NOGUARD): self.want[first:end] = [ZERO] * (end - first)
        if advice == GUARD: self.want[first:end] = [UNREADABLE] * (end - first)

    def protect(self, prot, first=0, end=None):
        end = end or len(self.want)
        done(libc.mprotect(self.at + first * PAGE, (end - first) * PAGE, prot), "mprotect")
        return self

    def move(self, to):
        done(libc.mremap(self.at, len(self.want) * PAGE, len(self.want) * PAGE, 3, to), "mremap")
        self.at = to

    def wrong(self, memory):
        bad = []
        for i, want in enumerate(self.want):
            try: got = os.pread(memory, PAGE, self.at + i * PAGE)
            except OSError: got = UNREADABLE
            if got != content(want): bad.append(i)
        return bad


def existing(at, want):
    a = Area.__new__(Area)
    a.at, a.want = at, want
    return a


def on_heap(pages):
    at = -(-libc.sbrk(0) // PAGE) * PAGE
    done(libc.sbrk(at - libc.sbrk(0) + pages * PAGE), "sbrk")
    return existing(at, [ZERO] * pages)


areas = {}


def wrong(who):
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    bad = {name: pages for name, pages in ((name, a.wrong(memory)) for name, a in areas.items()) if pages}
    os.close(memory)
    if bad: print(who, {k: (len(v), v[:8], hex(areas[k].at)) for k, v in bad.items()}, flush=True)
    return bool(bad)


# First what is asked: 1 for a change, and any other number for a check. From 64 on the last question that each process has
# answered, from 128 on whether it has found a page that is wrong.
control = mmap.mmap(-1, PAGE)
processes = {}  # their pids, by their numbers


def serve(who, number, change):
    while True:
        time.sleep(0.005)
        if control[0] == control[64 + number]: continue
        if control[0] == 1: change()
        elif wrong(who): control[128 + number] = 1
        control[64 + number] = control[0]


def process(who, number, change, begin=lambda: None):
    pid = os.fork()
    if pid == 0:
        try:
            begin()
            serve(who, number, change)
        except BaseException as e: print(who, repr(e), flush=True)
        os._exit(1)
    processes[number] = pid
    return pid


BASE = 0x300000000000


def fixed(i): return BASE + i * (64 << 20)


areas["ballast"] = Area(3072, fixed(0)).fill(1)
areas["again"] = Area(512, fixed(1)).fill(2)
areas["dropped"] = Area(512, fixed(2)).fill(3)
areas["swapped 1"] = Area(256, fixed(3)).fill(4)
areas["swapped 2"] = Area(256, fixed(4)).fill(5)
areas["closed"] = Area(256, fixed(5)).fill(6)
areas["read only"] = Area(256, fixed(6)).fill(7).protect(READ)
program = os.open(next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line), os.O_RDONLY)
areas["of a file"] = Area(256, fixed(7), PRIVATE, fd=program)
file = [os.pread(program, PAGE, i * PAGE) for i in range(256)]
areas["of a file"].want = list(file)
areas["of a file"].fill(8, range(0, 256, 2))
areas["shared"] = Area(512, fixed(8), SHARED | ANONYMOUS).fill(9)
areas["shared anew"] = Area(512, fixed(9), SHARED | ANONYMOUS).fill(10)
memfd = os.memfd_create("memfd")
os.ftruncate(memfd, 1 << 20)
areas["memfd"] = Area(512, fixed(10), SHARED, fd=memfd)
areas["memfd"].want[256:] = []
areas["memfd"].fill(11)
areas["of the memfd"] = Area(256, fixed(11), PRIVATE, fd=memfd)
areas["of the memfd"].fill(12)
down = Area(64, fixed(12), PRIVATE | ANONYMOUS | GROWSDOWN).fill(13)
areas["grows down"] = down
areas["heap"] = on_heap(256).fill(14)
areas["huge"] = Area(2048, fixed(13))
areas["huge"].advise(0, 2048, HUGEPAGE)
areas["huge"].fill(15)
areas["guards"] = Area(256, fixed(14)).fill(16)
areas["guards"].advise(10, 20, GUARD)
areas["zeros"] = Area(256, fixed(15)).fill(17, range(0, 256, 2))
for i in range(1, 256, 4): areas["zeros"].put(i, ZERO)
areas["locked"] = Area(256, fixed(16), PRIVATE | ANONYMOUS | LOCKED).fill(18)
reserve = Area(0x1000, fixed(17), prot=0)
areas["in a reserve"] = reserve
# With a parent, criu maps the first writable before its place is known. The second is too large for that.
done(libc.mmap(fixed(20), 10 << 30, 0, PRIVATE | ANONYMOUS | FIXED, -1, 0))
done(libc.mmap(fixed(200), 40 << 30, 0, PRIVATE | ANONYMOUS | FIXED | NORESERVE, -1, 0))
reserve.protect(ANYTHING, 0, 0x400).fill(19, range(0x400)).protect(0, 0x300, 0x400)
areas["split"] = Area(512, fixed(18)).fill(20)
areas["joined 1"] = Area(128, fixed(19)).fill(21)
areas["joined 2"] = Area(128, fixed(19) + 256 * PAGE).fill(22)


def change():
    a = areas["again"]
    done(libc.munmap(a.at, len(a.want) * PAGE))
    areas["again"] = Area(512, a.at).fill(2, range(0, 200)).fill(102, range(200, 300))
    areas["dropped"].advise(128, 384, DONTNEED)
    areas["dropped"].fill(103, range(200, 210))
    a, b = areas["swapped 1"], areas["swapped 2"]
    first, second = a.at, b.at
    a.move(fixed(60)), b.move(first), a.move(second)
    areas["closed"].protect(0, 0, 128).protect(READ, 128, 192)
    areas["read only"].protect(ANYTHING).fill(107, range(3)).protect(READ)
    a = areas["of a file"]
    a.fill(108, range(1, 64, 2))
    done(libc.madvise(a.at + 128 * PAGE, 128 * PAGE, DONTNEED))
    a.want[128:] = file[128:]
    a = areas["grows down"]
    a.at -= 32 * PAGE
    a.want[:0] = [ZERO] * 32
    for i in range(31, -1, -1): a.put(i, (113, i))
    areas["heap"].fill(114, range(200, 256))
    areas["more heap"] = on_heap(256).fill(214, range(100))
    areas["huge"].fill(115, [5, 600])
    areas["huge"].advise(1024, 1536, DONTNEED)
    a = areas["guards"]
    a.advise(15, 20, NOGUARD)
    a.fill(116, range(17, 20))
    a.advise(30, 40, GUARD)
    for i in range(0, 64): areas["zeros"].put(i, ZERO)
    areas["zeros"].fill(117, range(64, 130))
    areas["zeros"].advise(130, 160, DONTNEED)
    areas["locked"].fill(118, [7])
    reserve.protect(ANYTHING, 0x800, 0xa00).fill(119, range(0x800, 0x900)).protect(READ, 0x880, 0x900)
    a = areas["split"]
    done(libc.munmap(a.at + 128 * PAGE, 256 * PAGE))
    areas["split 2"] = existing(a.at + 384 * PAGE, a.want[384:])
    a.want[128:] = []
    areas["joint"] = Area(128, fixed(19) + 128 * PAGE).fill(121, range(40))


def change_root():
    change()
    areas["shared"].fill(109, range(10))
    areas["shared"].advise(64, 128, REMOVE)
    a = areas["memfd"]
    os.ftruncate(memfd, 2 << 20)
    a.want += [ZERO] * 256
    a.fill(111, range(250, 300))
    a.advise(100, 130, REMOVE)
    private = areas["of the memfd"]
    private.fill(112, range(50, 60))
    private.advise(60, 90, DONTNEED)
    private.want[60:90] = a.want[60:90]
    areas["shared anew"] = Area(512, areas["shared anew"].at, SHARED | ANONYMOUS).fill(10, range(400)).fill(110, range(400, 500))


def change_child():
    for name in "memfd", "of the memfd", "shared anew": del areas[name]  # the root changes them
    areas["shared"].want[:10] = [(109, i) for i in range(10)]
    areas["shared"].want[64:128] = [ZERO] * 64
    areas["ballast"].fill(201, range(100))
    areas["ballast"].advise(500, 600, DONTNEED)


def change_child_alike():
    change_child()
    change()


process("child that changes alike", 1, change_child_alike)
process("child that changes little", 2, change_child)
dies = process("child that ends", 3, lambda: os._exit(0))
threading.Thread(target=lambda: time.sleep(10**6), daemon=True).start()


def ask(what, of):
    control[0] = what
    until = time.monotonic() + 30
    while any(control[64 + i] != what for i in of):
        if time.monotonic() > until: raise Exception("no answer: %r" % control[64:72])
        time.sleep(0.005)


def begin_another():
    if os.getpid() != dies: os._exit(0)
    kept = areas["ballast"].fill(301, range(300, 400))
    areas.clear()
    areas.update({"ballast": kept, "new": Area(512, fixed(1)).fill(2)})


def change_all():
    ask(1, [1, 2])
    os.waitpid(dies, 0)
    change_root()
    while True:  # others take pids as well
        with open("/proc/sys/kernel/ns_last_pid", "w") as f: f.write(str(dies - 1))
        pid = process("child with the pid of another", 3, lambda: None, begin_another)
        if pid == dies: break
        os.waitpid(pid, 0)


bad, generation = 0, 1
for tick in range(10**6):
    with open(directory + "/status.new", "w") as f: f.write('{"tick":%d,"bad":%d}' % (tick + 1, bad))
    os.rename(directory + "/status.new", directory + "/status")
    if os.path.exists(directory + "/change"):
        change_all()
        os.rename(directory + "/change", directory + "/changed")
    if os.path.exists(directory + "/check"):
        generation = 2 + generation % 200
        ask(generation, processes)
        bad = int(wrong("root") or any(control[128:192]))
        with open(directory + "/checked.new", "w") as f: f.write('{"bad":%d,"words":1}' % bad)
        os.rename(directory + "/checked.new", directory + "/checked")
        os.remove(directory + "/check")
    time.sleep(0.02)
