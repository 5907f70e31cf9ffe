/* fabricfix PID MODE [SWAP]: a checkpoint and a restore in which what the driver forgets of fabric memory is made again from outside. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct ctrl { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; };
static uint32_t rm(int fd, uint32_t c, uint32_t o, uint32_t cmd, void *p, uint32_t n) {
	struct ctrl k = {c, o, cmd, 0, (uint64_t)(uintptr_t)p, n, 0};
	if (ioctl(fd, _IOC(3, 'F', 0x2a, sizeof k), &k) < 0) return 0xf0000000u | errno;
	return k.status;
}
static uint32_t info(int fd, uint32_t c, uint32_t o, uint32_t index, uint32_t *out) {
	struct { uint32_t object, index; uint64_t result; } p = {o, index, 0};
	uint32_t st = rm(fd, c, c, 0xd02, &p, sizeof p); *out = (uint32_t)p.result; return st;
}
static uint32_t duplicates(int fd, uint32_t c, uint32_t a, uint32_t b, int *yes) {
	struct { uint32_t a, b; unsigned char yes, pad[3]; } p = {a, b, 0, {0}};
	uint32_t st = rm(fd, c, c, 0xd07, &p, sizeof p); *yes = p.yes; return st;
}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
struct fabric { uint32_t handle, parent, source, vidmem; uint64_t size, page; uint32_t flags; uint32_t made; };
static struct fabric f[256]; static int nf;
static uint32_t cls[0x4000], par[0x4000]; static uint64_t msize[0x4000];
#define BASE 0x5c000000u
static int pid, pidfd, ctl = -1; static uint32_t client;
static int find_client(uint32_t not) {
	char path[64]; snprintf(path, sizeof path, "/proc/%d/fd", pid); DIR *d = opendir(path);
	for (struct dirent *e; (e = readdir(d));) {
		char link[512]; ssize_t n = readlinkat(dirfd(d), e->d_name, link, 511); if (n < 0) continue; link[n] = 0;
		if (!strstr(link, "nvidiactl")) continue;
		int fd = syscall(SYS_pidfd_getfd, pidfd, atoi(e->d_name), 0);
		for (uint32_t c = 0xc1d00000; fd >= 0 && c < 0xc1d08000; c++) { uint32_t k; if (c != not && !info(fd, c, c, 2, &k) && !info(fd, c, BASE + 3, 2, &k)) { ctl = fd; client = c; closedir(d); return 0; } }
		if (fd >= 0) close(fd);
	}
	closedir(d); return -1;
}
static void scan(void) {
	double b = now();
	memset(cls, 0, sizeof cls); nf = 0;
	for (uint32_t o = 1; o < 0x1000; o++) { uint32_t k; if (info(ctl, client, BASE + o, 2, &k)) continue; cls[o] = k; info(ctl, client, BASE + o, 1, &par[o]);
		if (k == 0x40 || k == 0x3e) { uint32_t l[2][2] = {{2, 0}, {3, 0}}; struct { uint32_t n, pad; uint64_t p; } q = {2, 0, (uintptr_t)l}; rm(ctl, client, BASE + o, 0x410110, &q, sizeof q); msize[o] = (uint64_t)l[1][1] << 32 | l[0][1]; } }
	int p2p = 0;
	for (uint32_t o = 1; o < 0x1000; o++) {
		p2p += cls[o] == 0x503b;
		if (cls[o] != 0xf8) continue;
		struct { uint64_t size, page; uint32_t flags, a, b, pad; } g = {0};
		uint32_t st = rm(ctl, client, BASE + o, 0xf80101, &g, sizeof g);
		struct fabric *x = &f[nf++]; *x = (struct fabric){.handle = BASE + o, .parent = par[o], .size = g.size, .page = g.page, .flags = g.flags};
		if (cls[o - 1] == 0x40) { x->vidmem = BASE + o - 1; }
		printf("  fabric %x parent %x info st=%x size %llx page %llx flags %x attrs %x %x; before it %x class %x size %llx\n", x->handle, x->parent, st, (unsigned long long)g.size, (unsigned long long)g.page, g.flags, g.a, g.b, BASE + o - 1, cls[o - 1], (unsigned long long)msize[o - 1]);
	}
	for (int i = 0; i < nf; i++) for (int j = 0; j < i; j++) { int yes; uint32_t st = duplicates(ctl, client, f[i].handle, f[j].handle, &yes); if (st) { printf("  duplicates %x %x: st=%x\n", f[i].handle, f[j].handle, st); continue; } if (yes && !f[j].source) { f[i].source = f[j].handle; f[i].vidmem = 0; printf("  %x is a duplicate of %x\n", f[i].handle, f[j].handle); } }
	for (uint32_t o = 2; o < 0x1000; o++) if (cls[o] == 0x3e) for (uint32_t p = o - 1; p > o - 3 && p; p--) { int yes; if (cls[p] == 0x3e && !duplicates(ctl, client, BASE + o, BASE + p, &yes) && yes) printf("  system memory %x is a duplicate of %x size %llx\n", BASE + o, BASE + p, (unsigned long long)msize[o]); }
	printf("  scan: client %x, %d P2P, %d fabric, %.3f s\n", client, p2p, nf, now() - b);
}
static uint32_t alloc_fabric(int fd, uint32_t c, struct fabric *x) {
	struct { uint64_t align, size, page; uint32_t flags, pad; uint64_t offset; uint32_t vidmem, mflags; } p = {x->page, x->size, x->page, x->flags, 0, 0, x->vidmem, 0};
	struct { uint32_t root, parent, obj, cls; uint64_t params, rights; uint32_t psize, flags, status, pad; } a = {c, x->parent, x->handle, 0xf8, (uintptr_t)&p, 0, 0, 0, 0, 0};
	if (ioctl(fd, _IOC(3, 'F', 0x2b, sizeof a), &a) < 0) return 0xf0000000u | errno;
	return a.status;
}
static uint32_t dup_object(int fd, uint32_t c, uint32_t parent, uint32_t obj, uint32_t src) {
	struct { uint32_t c, parent, obj, csrc, src, flags, status; } d = {c, parent, obj, c, src, 0, 0};
	if (ioctl(fd, _IOC(3, 'F', 0x34, sizeof d), &d) < 0) return 0xf0000000u | errno;
	return d.status;
}
static struct fabric *find(uint32_t h) { for (int i = 0; i < nf; i++) if (f[i].handle == h) return &f[i]; return NULL; }
static void make(int fd, uint32_t c, struct fabric *x) {
	if (x->made == c) return;
	uint32_t st, k;
	if (!info(fd, c, x->handle, 2, &k)) { printf("  %x is there already, class %x\n", x->handle, k); x->made = c; return; }
	if (x->source) { struct fabric *s = find(x->source); make(fd, c, s); st = dup_object(fd, c, x->parent, x->handle, s->handle); printf("  dup %x of %x in client %x: st=%x\n", x->handle, s->handle, c, st); }
	else { st = alloc_fabric(fd, c, x); printf("  made %x over %x in client %x: st=%x\n", x->handle, x->vidmem, c, st); }
	x->made = c;
}
static void *cuda; static volatile int done; static int result; static void *restore_args;
static int call(const char *n, void *a) { int (*g)(int, void *) = dlsym(cuda, n); return g(pid, a); }
static void *restorer(void *u) { (void)u; double b = now(); result = call("cuCheckpointProcessRestore", restore_args); printf("  restore %d (%.0f ms)\n", result, (now() - b) * 1000); done = 1; return NULL; }
int main(int argc, char **argv) {
	setvbuf(stdout, NULL, _IONBF, 0);
	pid = atoi(argv[1]); const char *mode = argc > 2 ? argv[2] : "scan";
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	double b = now();
	if (find_client(0)) { puts("  no client"); return 1; }
	printf("  client found in %.3f s\n", now() - b);
	scan();
	if (!strcmp(mode, "scan")) return 0;
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	uint32_t z[16] = {5000}; int r = call("cuCheckpointProcessLock", z); z[0] = 0; usleep(100000);
	b = now(); int r2 = call("cuCheckpointProcessCheckpoint", z);
	printf("  lock %d checkpoint %d (%.0f ms)\n", r, r2, (now() - b) * 1000);
	static struct { unsigned char a[16], b[16]; } pairs[2]; static struct { void *p; uint32_t n; char rest[52]; } ra;
	if (argc > 4) { for (int i = 0; i < 2; i++) for (int k = 0; k < 16; k++) { unsigned v; sscanf(argv[3 + i] + 2 * k, "%2x", &v); pairs[i].a[k] = v; pairs[1 - i].b[k] = v; } ra.p = pairs; ra.n = 2; }
	restore_args = &ra;
	int tid = 0; int (*gt)(int, int *) = dlsym(cuda, "cuCheckpointProcessGetRestoreThreadId"); gt(pid, &tid);
	int fixing = !strcmp(mode, "fix"), n33 = 0, stops = 0, mine = -1, minefd = -1; uint32_t lastc = 0;
	if (fixing) { if (ptrace(PTRACE_SEIZE, tid, 0, PTRACE_O_TRACESYSGOOD)) perror("seize"); ptrace(PTRACE_INTERRUPT, tid, 0, 0); int s; waitpid(tid, &s, __WALL); ptrace(PTRACE_SYSCALL, tid, 0, 0); }
	pthread_t t; pthread_create(&t, NULL, restorer, NULL);
	while (!done) {
		int s; if (!fixing) { usleep(1000); continue; }
		int w = waitpid(tid, &s, __WALL | WNOHANG);
		if (w == 0) { usleep(20); continue; }
		if (w < 0 || WIFEXITED(s) || WIFSIGNALED(s)) { printf("  restore thread: wait %d status %x\n", w, s); fixing = 0; continue; }
		stops++;
		if (WSTOPSIG(s) == (5 | 0x80)) {
			struct __ptrace_syscall_info i; memset(&i, 0, sizeof i);
			ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof i, &i);
			if (i.op == PTRACE_SYSCALL_INFO_ENTRY && i.entry.nr == SYS_ioctl && (i.entry.args[1] & 0xffffffff) == 33) {
				uint32_t v[4]; struct iovec l = {v, 12}, rr = {(void *)(i.entry.args[2] + 9248), 12};
				n33++;
				if (process_vm_readv(pid, &l, 1, &rr, 1, 0) == 12) {
					struct fabric *x = find(v[2]);
					if (mine != (int)v[0]) { if (minefd >= 0) close(minefd); minefd = syscall(SYS_pidfd_getfd, pidfd, v[0], 0); mine = v[0]; }
					lastc = v[1];
					if (x) make(minefd, v[1], x);
				}
			}
			ptrace(PTRACE_SYSCALL, tid, 0, 0);
		} else if (s >> 16 == PTRACE_EVENT_STOP) ptrace(PTRACE_SYSCALL, tid, 0, 0);
		else ptrace(PTRACE_SYSCALL, tid, 0, WSTOPSIG(s));
	}
	pthread_join(t, NULL);
	if (fixing) { ptrace(PTRACE_INTERRUPT, tid, 0, 0); int s; waitpid(tid, &s, __WALL); ptrace(PTRACE_DETACH, tid, 0, 0); printf("  %d stops, %d mappings seen, client now %x\n", stops, n33, lastc); }
	if (result == 0) {
		if (strcmp(mode, "none")) {
			if (!lastc) { close(ctl); if (!find_client(0)) { minefd = ctl; lastc = client; } }
			for (int i = 0; lastc && i < nf; i++) make(minefd, lastc, &f[i]);
		}
		printf("  unlock %d\n", call("cuCheckpointProcessUnlock", z));
	}
	return result;
}
