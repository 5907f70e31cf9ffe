/*
 * situations.c: what a program may do around the driver, and what comes of it, a line for each thing. The lines are the same
 * with the guest and without it. It takes the name of one of the situations below, a size in MiB, and what that one takes.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS(X)                                                                                                       \
	X(cuInit, unsigned)                                                                                            \
	X(cuDriverGetVersion, int *)                                                                                   \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                             \
	X(cuCtxSetCurrent, CUcontext)                                                                                  \
	X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                                        \
	X(cuMemFree_v2, CUdeviceptr)                                                                                   \
	X(cuMemCreate, CUhandle *, size_t, const struct properties *, unsigned long long)                              \
	X(cuMemRelease, CUhandle)                                                                                      \
	X(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)                         \
	X(cuMemMap, CUdeviceptr, size_t, size_t, CUhandle, unsigned long long)                                         \
	X(cuMemUnmap, CUdeviceptr, size_t)                                                                             \
	X(cuMemSetAccess, CUdeviceptr, size_t, const struct access *, size_t)                                          \
	X(cuMemExportToShareableHandle, void *, CUhandle, int, unsigned long long)                                     \
	X(cuIpcGetMemHandle, struct ipc *, CUdeviceptr)                                                                \
	X(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)                                                          \
	X(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)

#include "rows.h"

static void *library;
static size_t size;
static char **arguments;
static CUcontext context;

static void row(const char *what, long r) { printf("%s: %ld\n", what, r), fflush(stdout); }

static void begin(void)
{
	library = load_driver(1);
	row("cuInit", cuInit(0));
	row("context", cuDevicePrimaryCtxRetain(&context, 0));
	row("current", cuCtxSetCurrent(context));
}

static CUdeviceptr allocate(void)
{
	CUdeviceptr at = 0;

	row("alloc", cuMemAlloc_v2(&at, size));
	return at;
}

/* Memory that is made and mapped. */
static CUdeviceptr make(CUhandle *handle)
{
	const struct properties wanted = {CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, NULL, {0}};
	const struct access own = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at = 0;

	row("create", cuMemCreate(handle, size, &wanted, 0));
	row("reserve", cuMemAddressReserve(&at, size, 0, 0, 0));
	row("map", cuMemMap(at, size, 0, *handle, 0));
	row("access", cuMemSetAccess(at, size, &own, 1));
	return at;
}

static void use(CUdeviceptr at)
{
	uint64_t out = 0x0123456789abcdef, in = 0;

	row("write", cuMemcpyHtoD_v2(at + size - sizeof out, &out, sizeof out));
	row("read", cuMemcpyDtoH_v2(&in, at + size - sizeof in, sizeof in));
	row("the same", in == out);
}

static void share(CUdeviceptr at, CUhandle handle)
{
	struct ipc ipc;
	int fd;

	if (handle)
		row("export", cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	else
		row("ipc handle", cuIpcGetMemHandle(&ipc, at));
}

/* A library was looked at and closed before another one uses it. */
static void reopened(void)
{
	int (*plugin)(size_t), version;
	void *other;

	library = load_driver(1);
	row("version", cuDriverGetVersion(&version));
	row("close", dlclose(library));
	for (int i = 0; i < 4000; i++) /* what else comes to lie where it was */
		if (mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
			fail("mmap");
	if (!(other = dlopen(arguments[0], RTLD_NOW)))
		fail(dlerror());
	*(void **)&plugin = dlsym(other, "plugin");
	row("plugin", plugin(size));
}

static CUdeviceptr common;
static CUhandle common_handle;
static pthread_barrier_t barrier;

/* It is cancelled before it calls, and ends when a function lets it. */
static void *call_cancelled(void *which)
{
	struct ipc ipc;
	int fd;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	cuCtxSetCurrent(context);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	if (!strcmp(which, "free"))
		cuMemFree_v2(common);
	else if (!strcmp(which, "export"))
		cuMemExportToShareableHandle(&fd, common_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	else if (!strcmp(which, "ipc"))
		cuIpcGetMemHandle(&ipc, common);
	else
		fail("which call?");
	return NULL;
}

static void cancelled(void)
{
	pthread_t thread;

	begin();
	common = allocate();
	make(&common_handle);
	pthread_barrier_init(&barrier, NULL, 2);
	if (pthread_create(&thread, NULL, call_cancelled, arguments[0]))
		fail("pthread_create");
	pthread_barrier_wait(&barrier);
	pthread_cancel(thread);
	pthread_barrier_wait(&barrier);
	pthread_join(thread, NULL);
	alarm(60); /* what the thread has kept would be waited for */
	use(allocate());
}

/* What shares memory, by handle or by descriptor. */
static CUhandle shared_by(const char *how, CUdeviceptr *at)
{
	CUhandle handle = 0;

	begin();
	*at = strcmp(how, "export") ? allocate() : make(&handle);
	return handle;
}

/* There are so many free descriptors. */
static void few_descriptors(void)
{
	const int spare = atoi(arguments[1]);
	CUdeviceptr at;
	CUhandle handle = shared_by(arguments[0], &at);
	struct rlimit limit;
	int next = dup(0);

	for (int i = next + 1; i < 4096 && next >= 0; i++) /* fills the holes, too */
		if (fcntl(i, F_GETFD) >= 0)
			next = i;
	for (int i = 0; i < next; i++)
		if (fcntl(i, F_GETFD) < 0 && dup2(0, i) < 0)
			fail("dup2");
	limit = (struct rlimit){(rlim_t)(next + 1 + spare), (rlim_t)(next + 1 + spare)};
	setrlimit(RLIMIT_NOFILE, &limit);
	share(at, handle);
}

static void changed_root(void)
{
	CUdeviceptr at;
	CUhandle handle = shared_by(arguments[0], &at);
	char dir[] = "/tmp/empty-XXXXXX";

	if (!mkdtemp(dir) || chdir(dir) || rmdir(dir) || chroot("."))
		fail("chroot");
	share(at, handle);
}

/* There is no more address space. */
static void few_addresses(void)
{
	CUdeviceptr at;
	CUhandle handle = shared_by(arguments[0], &at);
	struct rlimit limit = {0, RLIM_INFINITY};
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%ld", &pages) != 1)
		fail("statm");
	fclose(f);
	limit.rlim_cur = (rlim_t)pages * 4096 + (1 << 20);
	setrlimit(RLIMIT_AS, &limit);
	share(at, handle);
}

/* From now on the kernel refuses a call. */
static void refuse(int call)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){4, code}))
		fail("seccomp");
}

/* There can be no more threads, or no more sockets. */
static void refused(void)
{
	const int threads = !strcmp(arguments[0], "threads");
	CUdeviceptr at;

	begin();
	refuse(threads ? SYS_clone : SYS_socket);
	if (threads)
		refuse(SYS_clone3);
	use(at = allocate());
	share(at, 0);
	row("free", cuMemFree_v2(at));
}

/* A mapping is unmapped as a whole. */
static void half_unmapped(void)
{
	CUhandle handle;
	CUdeviceptr at;

	begin();
	at = make(&handle);
	row("unmap a half", cuMemUnmap(at, size / 2));
	row("unmap the other half", cuMemUnmap(at + size / 2, size / 2));
	use(at);
	row("unmap", cuMemUnmap(at, size));
	row("release", cuMemRelease(handle));
}

/* The real dlsym is found by other ways. */
static void other_dlsym(void)
{
	void *(*find)(void *, const char *) = NULL;
	CUresult (*release)(CUdeviceptr);
	CUdeviceptr at;

	begin();
	at = allocate();
	if (!strcmp(arguments[0], "dlvsym")) {
		*(void **)&find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
		if (!find)
			*(void **)&find = dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.34");
	} else {
		*(void **)&find = dlsym(dlopen("libc.so.6", RTLD_NOW), "dlsym");
		if (!find)
			*(void **)&find = dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlsym");
	}
	if (!find)
		fail("no dlsym");
	*(void **)&release = find(library, "cuMemFree_v2");
	row("free", release(at));
}

/* Whose a function is. */
static void whose(void)
{
	Dl_info info;

	begin();
	if (!dladdr((void *)cuMemAlloc_v2, &info) || !dladdr((void *)cuDriverGetVersion, &info))
		fail("dladdr");
	printf("cuDriverGetVersion is %s of %.10s\n", info.dli_sname, basename((char *)info.dli_fname));
	dladdr((void *)cuMemAlloc_v2, &info);
	printf("cuMemAlloc_v2 is of %.10s\n", basename((char *)info.dli_fname));
	dladdr((void *)whose, &info);
	printf("and this of %s\n", basename((char *)info.dli_fname));
}

/* All sockets but the driver's are closed, and a listener of the program's has the number of one. */
static void closed_sockets(void)
{
	struct sockaddr_un mine = {.sun_family = AF_UNIX};
	struct ipc ipc;
	int s, accepted = 0;
	CUdeviceptr at;

	begin();
	at = allocate();
	row("ipc handle", cuIpcGetMemHandle(&ipc, at));
	for (int i = 3; i < 256; i++) {
		struct sockaddr_un a = {0};
		socklen_t n = sizeof a;
		if (!getsockname(i, (struct sockaddr *)&a, &n) && !memcmp(a.sun_path + 1, "cucriu-guest", 12))
			close(i);
	}
	s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	snprintf(mine.sun_path + 1, sizeof mine.sun_path - 1, "situations-%d", getpid());
	if (bind(s, (struct sockaddr *)&mine, sizeof mine) || listen(s, 64))
		fail("listen");
	for (int i = 0; i < 20; i++) {
		int peer = socket(AF_UNIX, SOCK_STREAM, 0);
		if (connect(peer, (struct sockaddr *)&mine, sizeof mine))
			fail("connect");
		usleep(20000); /* for who might take it away */
		accepted += accept(s, NULL, NULL) >= 0;
		close(peer);
	}
	row("accepted", accepted);
	row("ipc handle", cuIpcGetMemHandle(&ipc, at));
}

/* Children of a program that has asked for functions, and does not use CUDA yet. */
static void child_first(void)
{
	int status;
	pid_t child;

	library = load_driver(1);
	child = strcmp(arguments[0], "fork") ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
	if (!child) {
		begin();
		use(allocate());
		share(allocate(), 0);
		_exit(0);
	}
	waitpid(child, &status, 0);
	row("child", status);
	begin();
	use(allocate());
}

static volatile int over;

static void *allocate_on(void *unused)
{
	CUdeviceptr at;

	(void)unused;
	cuCtxSetCurrent(context);
	while (!over)
		if (!cuMemAlloc_v2(&at, size))
			cuMemFree_v2(at);
	return NULL;
}

/* Children of a program whose threads are in the driver. */
static void child_amid(void)
{
	pthread_t threads[4];
	int status = 0, failed = 0;

	begin();
	for (int i = 0; i < 4; i++)
		if (pthread_create(&threads[i], NULL, allocate_on, NULL))
			fail("pthread_create");
	for (int i = 0; i < 50; i++) {
		pid_t child = i % 2 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		if (!child) {
			CUdeviceptr at;
			alarm(30);
			_exit(!cuMemAlloc_v2(&at, size)); /* it has no GPU */
		}
		waitpid(child, &status, 0);
		failed += status != 0;
	}
	over = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	row("children that did not end as they should", failed);
}

/* A second libcuda, in a namespace of its own. */
static void own_namespace(void)
{
	if (!(library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)))
		fail(dlerror());
#define X(name, ...) *(void **)&name = dlsym(library, #name);
	CALLS(X)
#undef X
	row("cuInit", cuInit(0));
	row("context", cuDevicePrimaryCtxRetain(&context, 0));
	row("current", cuCtxSetCurrent(context));
	use(allocate());
}

static volatile sig_atomic_t ticks;

static void tick(int signal) { (void)signal, ticks++; }

/* Signals all the time. */
static void interrupted(void)
{
	const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
	int failed = 0;
	struct ipc ipc;

	begin();
	signal(SIGALRM, tick);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 50; i++) {
		CUdeviceptr at;
		failed += cuMemAlloc_v2(&at, size) || cuIpcGetMemHandle(&ipc, at) || cuMemFree_v2(at);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	row("failed", failed);
	row("interrupted", ticks > 0);
}

static void ordinary(void)
{
	CUdeviceptr at;

	begin();
	use(at = allocate());
	row("free", cuMemFree_v2(at));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} situations[] = {
		{"reopened", reopened},		{"cancelled", cancelled},	{"few-descriptors", few_descriptors},
		{"changed-root", changed_root}, {"few-addresses", few_addresses}, {"refused", refused},
		{"half-unmapped", half_unmapped}, {"other-dlsym", other_dlsym}, {"whose", whose},
		{"closed-sockets", closed_sockets}, {"child-first", child_first}, {"child-amid", child_amid},
		{"own-namespace", own_namespace}, {"interrupted", interrupted}, {"ordinary", ordinary},
	};

	if (argc < 3 || !(size = strtoull(argv[2], NULL, 0) << 20))
		fail("usage: situations NAME MIB ...");
	arguments = argv + 3;
	for (size_t i = 0; i < sizeof situations / sizeof *situations; i++)
		if (!strcmp(argv[1], situations[i].name)) {
			situations[i].run();
			return 0;
		}
	fail("no such situation");
}
