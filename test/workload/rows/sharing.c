/*
 * sharing.c: what can go wrong between two programs of which one opens the memory of the
 * other by cuIpc, a line for each thing. The lines are the same with the guest and without it.
 * It takes the size in MiB.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../internal/kit/guest/lib/cuda.h"

#define CALLS(X)                                                                                                       \
	X(cuInit, unsigned)                                                                                            \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                             \
	X(cuCtxSetCurrent, CUcontext)                                                                                  \
	X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                                        \
	X(cuMemFree_v2, CUdeviceptr)                                                                                   \
	X(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)                                               \
	X(cuIpcGetMemHandle, struct ipc *, CUdeviceptr)                                                                \
	X(cuIpcOpenMemHandle_v2, CUdeviceptr *, struct ipc, unsigned)                                                  \
	X(cuIpcCloseMemHandle, CUdeviceptr)

#include "rows.h"

enum { TIMES = 60 };
static size_t size;
static CUcontext context;
static struct ipc handle;

static void begin(void)
{
	load_driver(1);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		fail("no context");
}

static void ticks(int unused) { (void)unused; }

/* A signal comes all the time, as to a program that is profiled. */
static void under_signals(void)
{
	struct itimerval often = {{0, 1000}, {0, 1000}}, never = {0};
	CUdeviceptr at;
	int failed = 0;

	signal(SIGALRM, ticks);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < TIMES; i++)
		failed += cuIpcOpenMemHandle_v2(&at, handle, 1) || cuIpcCloseMemHandle(at);
	setitimer(ITIMER_REAL, &never, NULL);
	printf("failed under signals: %d\n", failed);
}

static pthread_barrier_t barrier;
static CUdeviceptr opened[2];
static int different, failed, stop;

static void *opens_at_once(void *which)
{
	CUdeviceptr *mine = which;

	cuCtxSetCurrent(context);
	for (int i = 0; i < TIMES; i++) {
		pthread_barrier_wait(&barrier);
		CUresult r = cuIpcOpenMemHandle_v2(mine, handle, 1);
		pthread_barrier_wait(&barrier);
		if (mine == opened)
			different += opened[0] != opened[1];
		pthread_barrier_wait(&barrier);
		if (r || cuIpcCloseMemHandle(*mine))
			__atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void at_once(void)
{
	pthread_t threads[2];

	pthread_barrier_init(&barrier, NULL, 2);
	for (int i = 0; i < 2 && getenv("LD_PRELOAD"); i++) /* the driver by itself fails now and then */
		pthread_create(&threads[i], NULL, opens_at_once, &opened[i]);
	for (int i = 0; i < 2 && getenv("LD_PRELOAD"); i++)
		pthread_join(threads[i], NULL);
	printf("opened at once: %d failed, %d times at two addresses\n", failed, different);
}

static void *opens_again(void *unused)
{
	CUdeviceptr at;

	(void)unused;
	cuCtxSetCurrent(context);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		if (cuIpcOpenMemHandle_v2(&at, handle, 1) || at != opened[0] || cuIpcCloseMemHandle(at))
			__atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* It is asked about while others open and close it again. */
static void asked_meanwhile(void)
{
	pthread_t threads[2];
	CUdeviceptr base;
	size_t n;
	int wrong = 0;

	failed = 0;
	if (cuIpcOpenMemHandle_v2(&opened[0], handle, 1))
		fail("open");
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, opens_again, NULL);
	for (int i = 0; i < 200000; i++)
		wrong += cuMemGetAddressRange_v2(&base, &n, opened[0] + size / 2) || base != opened[0] || n != size;
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	printf("opened and closed meanwhile: %d failed, %d bounds wrong\n", failed, wrong);
	printf("close: %d\n", cuIpcCloseMemHandle(opened[0]));
}

/* A handle of the guest names a socket: see internal/kit/guest/lib/ipc.c. Without the guest it is one of the driver's. */
static bool is_of_the_guest(void) { return !memcmp(handle.bytes, "cucriu", 6); }

static int connect_to_the_guest(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	memcpy(a.sun_path + 1, "cucriu-guest-", 13);
	memcpy(a.sun_path + 14, handle.bytes + 8, 24);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	return s < 0 || connect(s, (struct sockaddr *)&a, offsetof(struct sockaddr_un, sun_path) + 14 + 24) ? -1 : s;
}

static void hostile(void)
{
	unsigned long long nothing[2] = {0, 0}, sizes[] = {0, ~0ull, 1ull << 50, 1ull << 62};
	char answer[64] = {0};
	CUdeviceptr at;
	int s;

	for (int i = 0; is_of_the_guest() && i < 100; i++)
		connect_to_the_guest(); /* and say nothing */
	if (is_of_the_guest()) {
		if ((s = connect_to_the_guest()) < 0)
			fail("nobody listens");
		send(s, nothing, sizeof nothing, 0);
		if (recv(s, answer, sizeof answer, 0) < 4 || !*(int *)answer)
			fail("memory was given out for which there is no handle");
		for (int i = 0; i < 4; i++) {
			struct ipc wrong = handle;
			memcpy(wrong.bytes + 40, &sizes[i], sizeof sizes[i]);
			if (cuIpcOpenMemHandle_v2(&at, wrong, 1) != 1)
				fail("a handle of a wrong size was opened");
		}
	}
	printf("open while others are silent: %d\n", cuIpcOpenMemHandle_v2(&at, handle, 1));
	printf("close: %d\n", cuIpcCloseMemHandle(at));
	memset(&handle, 0x55, sizeof handle);
	printf("open garbage: %d\n", cuIpcOpenMemHandle_v2(&at, handle, 1));
}

/* The memory of a process that has ended; a child of it lives on. */
static void ended(void)
{
	int offer[2], lives[2], forked[2], status;
	CUdeviceptr at;
	char byte;

	if (pipe(offer) || pipe(lives) || pipe(forked))
		fail("pipe");
	fflush(stdout);
	pid_t exporter = fork();
	if (!exporter) {
		begin();
		if (cuMemAlloc_v2(&at, size) || cuIpcGetMemHandle(&handle, at))
			_exit(1);
		if (!fork()) {
			close(lives[1]);
			_exit(write(forked[1], "", 1) != 1 || read(lives[0], &byte, 1) != 0);
		}
		/* The child has given up what it does not need when its fork returns. */
		_exit(read(forked[0], &byte, 1) != 1 || write(offer[1], &handle, sizeof handle) != sizeof handle);
	}
	if (read(offer[0], &handle, sizeof handle) != sizeof handle)
		fail("no handle");
	waitpid(exporter, &status, 0);
	begin();
	if (is_of_the_guest() && connect_to_the_guest() >= 0)
		fail("the child listens");
	cuIpcOpenMemHandle_v2(&at, handle, 1); /* the driver opens it, while a child lives that it was inherited by */
	printf("nobody waits for an ended process\n");
	close(lives[1]);
}

int main(int argc, char **argv)
{
	int offer[2], status = 0;
	CUdeviceptr own, at;

	if (argc != 2 || !(size = strtoull(argv[1], NULL, 0) << 20))
		fail("usage: sharing MIB");
	if (pipe(offer))
		fail("pipe");
	pid_t other = fork();
	if (!other) {
		if (read(offer[0], &handle, sizeof handle) != sizeof handle)
			fail("no handle");
		begin();
		under_signals();
		at_once();
		asked_meanwhile();
		hostile();
		return 0;
	}
	pid_t last = fork();
	if (!last) {
		waitpid(other, &status, 0);
		ended();
		return 0;
	}
	begin();
	if (cuMemAlloc_v2(&own, size) || cuMemAlloc_v2(&at, size) || cuIpcGetMemHandle(&handle, at) || write(offer[1], &handle, sizeof handle) != sizeof handle)
		fail("no handle");
	waitpid(other, &status, 0);
	printf("the other: %d\n", status);
	waitpid(last, &status, 0);
	printf("free: %d\n", cuMemFree_v2(at) || cuMemFree_v2(own));
	return status != 0;
}
