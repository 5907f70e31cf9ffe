/* process.c: cuInit, the gate and the hazard. */
#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct sim_block sim_block = {.magic = SIM_BLOCK_MAGIC, .size = sizeof sim_block};
struct sim_process sim = {.alive = -1, .hold = -1};

/* How often the gate was turned (it is closed if that is odd), and how many wait at it: from its opening on they count as inside. */
static _Atomic uint64_t gate;
static _Atomic uint32_t gate_inside; /* with those that wait */
static _Atomic bool hazard;
static int *volatile taken_away; /* volatile: the compiler must not see the NULL */

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_ns(uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
	nanosleep(&t, NULL);
}

CUresult sim_ready(void)
{
	if (!atomic_load(&sim_block.ready) || sim_block.pid != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	return CUDA_SUCCESS;
}

struct sim_device *sim_device_of(CUdevice ordinal)
{
	if (ordinal < 0 || ordinal >= sim.nvisible)
		return NULL;
	return &sim.device[sim.visible[ordinal]];
}

static bool is_closed(uint64_t g) { return g >> 32 & 1; }

/* How many synchronizing calls a thread has made since it asked the driver for anything else. */
static _Thread_local unsigned only_synchronized;

CUresult gate_enter(void)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	only_synchronized = 0;
	atomic_fetch_add(&gate_inside, 1);
	for (uint64_t g; is_closed(g = atomic_load(&gate));) {
		if (!atomic_compare_exchange_strong(&gate, &g, g + 1))
			continue;
		while (atomic_load(&gate) >> 32 == g >> 32)
			syscall(SYS_futex, (uint32_t *)&gate + 1, FUTEX_WAIT_PRIVATE, (uint32_t)(g >> 32), NULL, NULL, 0);
		break; /* let in by who opened, even if it is closed again */
	}
	return CUDA_SUCCESS;
}

void gate_leave(void) { atomic_fetch_sub(&gate_inside, 1); }

static void gate_turn(bool closed)
{
	uint64_t g = atomic_load(&gate);
	if (is_closed(g) == closed)
		return;
	while (!atomic_compare_exchange_strong(&gate, &g, ((g >> 32) + 1) << 32))
		;
	syscall(SYS_futex, (uint32_t *)&gate + 1, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void gate_close(void) { gate_turn(true); }
void gate_open(void) { gate_turn(false); }

bool gate_idle(void) { return atomic_load(&gate_inside) == (uint32_t)atomic_load(&gate); }

void hazard_set(bool on) { atomic_store(&hazard, on); }

static pthread_mutex_t driver_mutex = PTHREAD_MUTEX_INITIALIZER;

void driver_enter(void) { pthread_mutex_lock(&driver_mutex); }
void driver_leave(void) { pthread_mutex_unlock(&driver_mutex); }

bool driver_idle(void)
{
	bool idle = !pthread_mutex_trylock(&driver_mutex);
	if (idle)
		driver_leave();
	return idle;
}

void hazard_check(void)
{
	driver_enter();
	if (atomic_load(&hazard))
		*(volatile int *)taken_away = 0;
	/*
	 * A stop strikes a thread that does nothing else in here as often as not. From the lock on such a
	 * thread spins; before that it would only take a processor from the tests, and sleeps here and there.
	 */
	bool spins = is_closed(atomic_load(&gate)) || ++only_synchronized < 50;
	if (spins)
		for (uint64_t end = now_ns() + 20000; now_ns() < end;)
			;
	else
		sleep_ns(200000);
	driver_leave();
	if (spins)
		sched_yield();
	else
		sleep_ns(200000);
}

/* Out of the way of a program that counts on low descriptor numbers. */
static int move_high(int fd)
{
	if (fd < 0)
		return -errno;
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

#define MAPPED_BYTES 8192

/* Stands for what the real driver maps of its devices. */
static void *map_device(const struct sim_process *p)
{
	char path[SIM_FULLPATH];
	host_path(&p->host, path, "dev/nvidia-memory");
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		sim_log("%s: %s", path, strerror(errno));
		return MAP_FAILED;
	}
	void *at = mmap(NULL, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	int err = errno;
	close(fd);
	errno = err;
	return at;
}

int sim_hold(struct sim_process *p)
{
	char path[SIM_FULLPATH];
	host_path(&p->host, path, "dev/" SIM_CONTROL_NODE);
	int fd = move_high(open(path, O_RDWR | O_CLOEXEC));
	if (fd < 0) {
		sim_log("%s: %s", path, strerror(-fd));
		return fd;
	}
	fcntl(fd, F_SETOWN, getpid()); /* for whoever borrows it: see ioctl.c */
	int alive = process_register(&p->host, p->name);
	if (alive < 0) {
		sim_log("%s/procs: %s", p->host.root, strerror(-alive));
		close(fd);
		return alive;
	}
	p->mapped = map_device(p);
	if (p->mapped == MAP_FAILED) {
		int err = -errno;
		p->mapped = NULL;
		process_unregister(&p->host, p->name, alive);
		close(fd);
		return err;
	}
	p->hold = fd;
	p->alive = alive;
	return 0;
}

void sim_release(struct sim_process *p)
{
	process_unregister(&p->host, p->name, p->alive);
	if (p->hold >= 0)
		close(p->hold);
	if (p->mapped)
		munmap(p->mapped, MAPPED_BYTES);
	p->mapped = NULL;
	p->alive = p->hold = -1;
}

/* CUDA_VISIBLE_DEVICES: indices or UUIDs (or their beginnings); the first bad one ends the list. */
static int find_listed(const char *word)
{
	if (!strncmp(word, "GPU-", 4)) {
		int found = -1;
		for (int i = 0; i < sim.ndevices; i++) {
			char text[SIM_UUID_TEXT];
			uuid_format(&sim.device[i].uuid, text);
			if (!strncmp(text, word, strlen(word))) {
				if (found >= 0)
					return -1;
				found = i;
			}
		}
		return found;
	}
	char *end;
	long i = strtol(word, &end, 10);
	return end == word || *end || i < 0 || i >= sim.ndevices ? -1 : (int)i;
}

static void enumerate(void)
{
	uint32_t seen = host_visible(&sim.host);
	for (int i = 0; i < sim.host.ngpus; i++) {
		if (!(seen & 1u << i))
			continue;
		struct sim_device *d = &sim.device[sim.ndevices++];
		d->uuid = sim.host.gpu[i].uuid;
		memcpy(d->pci, sim.host.gpu[i].pci, sizeof d->pci);
		d->gpu = i;
	}
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	if (!list) {
		for (int i = 0; i < sim.ndevices; i++)
			sim.visible[sim.nvisible++] = i;
		return;
	}
	char text[1024], *state = NULL;
	strncpy(text, list, sizeof text - 1);
	text[sizeof text - 1] = 0;
	for (char *word = strtok_r(text, ", ", &state); word; word = strtok_r(NULL, ", ", &state)) {
		int i = find_listed(word);
		if (i < 0)
			return;
		for (int j = 0; j < sim.nvisible; j++)
			if (sim.visible[j] == i) { /* twice: no device at all */
				sim.nvisible = 0;
				return;
			}
		sim.visible[sim.nvisible++] = i;
	}
}

/* The child keeps the devices. The lock that says that its parent lives is not the child's. */
static void in_child(void)
{
	atomic_store(&sim_block.ready, 0);
	if (sim.alive >= 0)
		close(sim.alive);
	sim.alive = -1;
}

/*
 * The socket on which the real driver hands a descriptor to processes that share
 * memory with this one. Nobody asks here, but its name must be free, and CRIU
 * restores it.
 */
static int listen_for_peers(void)
{
	struct stat namespace;
	if (stat("/proc/self/ns/pid", &namespace) < 0)
		return -errno;
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, SIM_SOCKET_PREFIX "%lu-%d", (unsigned long)namespace.st_ino, getpid());
	int fd = move_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
	if (fd < 0)
		return fd;
	/* with the NUL that ends it */
	if (bind(fd, (void *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length + 1) < 0 || listen(fd, 16) < 0) {
		int err = -errno;
		sim_log("cuInit: socket @%s: %s", name.sun_path + 1, strerror(-err));
		close(fd);
		return err;
	}
	return fd;
}

static CUresult initialise(void)
{
	const char *root = getenv("CUDASIM_ROOT");
	if (!root) {
		sim_log("cuInit: CUDASIM_ROOT is not set; start the program with cudasim-run");
		return CUDA_ERROR_NO_DEVICE;
	}
	int err = host_load(&sim.host, root);
	if (err) {
		sim_log("cuInit: %s is not a simulated host: %s", root, strerror(-err));
		return CUDA_ERROR_NO_DEVICE;
	}
	sim.ndevices = sim.nvisible = 0;
	enumerate();
	if (!sim.nvisible)
		return CUDA_ERROR_NO_DEVICE;
	int peers = listen_for_peers();
	if (peers < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (sim_hold(&sim) < 0) {
		close(peers);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	sim_block.pid = getpid();
	if (agent_start() < 0) {
		sim_release(&sim);
		close(peers);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	pthread_atfork(NULL, NULL, in_child);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuInit(unsigned flags)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (sim_block.pid && sim_block.pid != getpid())
		return CUDA_ERROR_NOT_INITIALIZED; /* forked from a CUDA process */
	pthread_mutex_lock(&once);
	CUresult r = CUDA_SUCCESS;
	if (!atomic_load(&sim_block.ready)) {
		r = initialise();
		if (r)
			sim_block.pid = 0;
		else
			atomic_store(&sim_block.ready, 1);
	}
	pthread_mutex_unlock(&once);
	return r;
}

/* For NVML in the same process, which must not open this process's own name. */
EXPORT const char *cudasim_process_name(void) { return sim_ready() ? NULL : sim.name; }

/* For the simulated CUPTI. It does not matter that a profiler leaves again. */
EXPORT void cudasim_profiled(void) { atomic_store(&sim.profiled, true); }
