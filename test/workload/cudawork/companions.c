#include "companions.h"

#include <malloc.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "files.h"
#include "kernels.h"
#include "report.h"

#define PINNED_BYTES (1u << 20)
#define PINNED_WORDS (PINNED_BYTES / sizeof(uint32_t))
#define PINNED_SEED 77u

static struct {
	atomic_int ending;
	pthread_t *threads;
	int nthreads;
	pid_t child;
	uint32_t *pinned;
	enum pinned how;
} run;

static void start(void *(*fn)(void *), void *arg)
{
	int err;

	run.threads = realloc(run.threads, (run.nthreads + 1) * sizeof(*run.threads));
	if (!run.threads)
		die(EXIT_USAGE, "out of host memory");
	err = pthread_create(&run.threads[run.nthreads], NULL, fn, arg);
	if (err)
		die(EXIT_USAGE, "pthread_create: %s", strerror(err));
	run.nthreads++;
}

static int ending(void)
{
	return atomic_load_explicit(&run.ending, memory_order_relaxed);
}

void companions_fork_child(int share_files)
{
	pid_t parent = getpid();
	sigset_t before;

	/* Before the fork: a request that comes early must not kill the child. */
	child_block_requests(&before);
	run.child = share_files ? syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) : fork();
	if (run.child < 0)
		die(EXIT_USAGE, "--fork-child: cannot fork");
	if (!run.child)
		child_wait(parent);
	sigprocmask(SIG_SETMASK, &before, NULL);
}

void companions_look(void)
{
	const char *root = getenv("CUDASIM_ROOT");
	char path[PATH_LEN];
	int fd;

	snprintf(path, sizeof(path), "%s/dev/nvidiactl", root ? root : "");
	if (open(path, O_RDWR | O_CLOEXEC) < 0)
		die(EXIT_USAGE, "--look: %s: %s", path, strerror(errno));
	if (!root)
		return; /* it takes more to map what the real driver has */
	snprintf(path, sizeof(path), "%s/dev/nvidia-memory", root);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED || close(fd))
		die(EXIT_USAGE, "--look: %s: %s", path, strerror(errno));
}

void companions_io_uring(void)
{
	static unsigned char params[120]; /* struct io_uring_params, all defaults */

	/* Without io_uring, libraries do without. */
	if (syscall(SYS_io_uring_setup, 1, params) < 0 && errno != ENOSYS)
		die(EXIT_USAGE, "--io-uring: %s", strerror(errno));
}

static void *vfork_thread(void *arg)
{
	(void)arg;
	while (!ending()) {
		int status;
		pid_t pid = vfork();

		if (!pid) {
			execl("/bin/true", "true", NULL);
			_exit(EXIT_USAGE);
		}
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			bad("a program that was started by vfork ended with %d", status);
		sleep_ms(1);
	}
	return NULL;
}

void companions_vfork(void) { start(vfork_thread, NULL); }

struct spinner {
	struct gpu *gpu;
	enum spin mode;
};

/* A query may find work outstanding; anything else but success is an error. */
static CUresult queried(CUresult r)
{
	return r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r;
}

static void *spin_thread(void *arg)
{
	struct spinner *s = arg;
	CUstream stream;
	CUevent event = NULL;

	/* Everything is set up before the loop: the lock would hold back a submission, and hide the hazard. */
	gpu_use(s->gpu);
	must(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate for --spin");
	if (s->mode == SPIN_EVENT_SYNC || s->mode == SPIN_EVENT_QUERY) {
		must(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate for --spin");
		must(cu.EventRecord(event, stream), "cuEventRecord for --spin");
	}
	while (!ending()) {
		switch (s->mode) {
		case SPIN_STREAM_SYNC:
			must(cu.StreamSynchronize(stream), "cuStreamSynchronize in a spin thread");
			break;
		case SPIN_EVENT_SYNC:
			must(cu.EventSynchronize(event), "cuEventSynchronize in a spin thread");
			break;
		case SPIN_CTX_SYNC:
			must(cu.CtxSynchronize(), "cuCtxSynchronize in a spin thread");
			break;
		case SPIN_STREAM_QUERY:
			must(queried(cu.StreamQuery(stream)), "cuStreamQuery in a spin thread");
			break;
		case SPIN_EVENT_QUERY:
			must(queried(cu.EventQuery(event)), "cuEventQuery in a spin thread");
			break;
		case SPIN_NONE:
			return NULL;
		}
	}
	return NULL;
}

void companions_spin(struct gpu *gpus, int n, enum spin mode)
{
	static struct spinner spinners[MAX_GPUS];

	if (mode == SPIN_NONE)
		return;
	if (mode == SPIN_STREAM_QUERY)
		need(cu.StreamQuery, "cuStreamQuery", "--spin stream-query");
	if (mode == SPIN_EVENT_SYNC || mode == SPIN_EVENT_QUERY) {
		need(cu.EventCreate, "cuEventCreate", "--spin");
		need(cu.EventRecord, "cuEventRecord", "--spin");
		need(cu.EventSynchronize, "cuEventSynchronize", "--spin");
		need(cu.EventQuery, "cuEventQuery", "--spin");
	}
	for (int i = 0; i < n; i++) {
		spinners[i] = (struct spinner){&gpus[i], mode};
		start(spin_thread, &spinners[i]);
	}
}

/* The count lives in memory and, in step, in a register: a restore must bring back both. */
static void *count_thread(void *arg)
{
	volatile uint64_t in_memory = 0;
	uint64_t in_register = 0;

	(void)arg;
	while (!ending()) {
		for (int i = 0; i < 1000; i++) {
			in_memory = in_memory + 1;
			in_register++;
		}
		if (in_memory != in_register) {
			bad("a counting thread is at %llu in memory and at %llu in a register",
			    (unsigned long long)in_memory, (unsigned long long)in_register);
			in_memory = in_register;
		}
		sleep_ms(1);
	}
	return NULL;
}

void companions_count(long n)
{
	while (n-- > 0)
		start(count_thread, NULL);
}

static void *burn_thread(void *arg)
{
	(void)arg;
	/* The ticks go on: these are the last to get a CPU, also to stop on. */
	setpriority(PRIO_PROCESS, syscall(SYS_gettid), 19);
	while (!ending())
		for (volatile int i = 0; i < 100000; i++)
			;
	return NULL;
}

void companions_burn(long n)
{
	while (n-- > 0)
		start(burn_thread, NULL);
}

static void *trim_thread(void *arg)
{
	(void)arg;
	while (!ending()) {
		for (int i = 0; i < 10; i++)
			malloc_trim(0);
		usleep(50); /* or nobody else would get the lock at all */
	}
	return NULL;
}

void companions_trim(void)
{
	/* One arena for all threads, with gaps of whole pages to look through. */
	static void *gaps[200];
	mallopt(M_ARENA_MAX, 1);
	for (int i = 0; i < 200; i++) {
		gaps[i] = malloc(9000);
		*(void **)malloc(2000) = gaps; /* stays */
	}
	for (int i = 0; i < 200; i++)
		free(gaps[i]);
	start(trim_thread, NULL);
}

static void *pinned_thread(void *arg)
{
	const volatile uint32_t *words = arg;

	while (!ending()) {
		for (size_t i = GPU_SAMPLE_WORDS; i < PINNED_WORDS; i++) {
			uint32_t got = words[i];

			if (got != pattern_word(PINNED_SEED, i)) {
				bad("pinned host memory: word %zu is 0x%08x and should be 0x%08x",
				    i, got, pattern_word(PINNED_SEED, i));
				break;
			}
		}
		sleep_ms(1);
	}
	return NULL;
}

uint32_t *companions_pin(struct gpu *g, enum pinned how)
{
	gpu_use(g);
	if (how == PINNED_REGISTERED) {
		need(cu.MemHostRegister, "cuMemHostRegister_v2", "--registered");
		need(cu.MemHostUnregister, "cuMemHostUnregister", "--registered");
		run.pinned = aligned_alloc(1u << 16, PINNED_BYTES);
		if (!run.pinned)
			die(EXIT_USAGE, "out of host memory");
		must(cu.MemHostRegister(run.pinned, PINNED_BYTES, 0), "cuMemHostRegister for --registered");
	} else {
		need(cu.MemAllocHost, "cuMemAllocHost_v2", "--pinned");
		need(cu.MemFreeHost, "cuMemFreeHost", "--pinned");
		must(cu.MemAllocHost((void **)&run.pinned, PINNED_BYTES), "cuMemAllocHost for --pinned");
	}
	run.how = how;
	for (size_t i = 0; i < PINNED_WORDS; i++)
		run.pinned[i] = pattern_word(PINNED_SEED, i);
	start(pinned_thread, run.pinned);
	return run.pinned; /* the first GPU_SAMPLE_WORDS are not compared */
}

void companions_end(void)
{
	atomic_store(&run.ending, 1);
	for (int i = 0; i < run.nthreads; i++)
		pthread_join(run.threads[i], NULL);
	if (run.child > 0) {
		kill(run.child, SIGKILL);
		waitpid(run.child, NULL, 0);
	}
	if (run.how == PINNED_REGISTERED)
		must(cu.MemHostUnregister(run.pinned), "cuMemHostUnregister");
	else if (run.pinned)
		must(cu.MemFreeHost(run.pinned), "cuMemFreeHost");
}
