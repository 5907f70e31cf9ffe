/*
 * ordinary.c: what a program can see of memory that it makes by cuMemAlloc, a line for each
 * thing. The lines are the same with the guest and without it; "about" begins one whose
 * number may differ a little. It takes the size in MiB. A function that the driver lacks gives
 * no lines.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../../internal/kit/guest/lib/cuda.h"

#define CALLS(X)                                                                                                       \
	X(cuInit, unsigned)                                                                                            \
	X(cuDeviceGetCount, int *)                                                                                     \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                             \
	X(cuDevicePrimaryCtxRelease_v2, CUdevice)                                                                      \
	X(cuDevicePrimaryCtxReset_v2, CUdevice)                                                                        \
	X(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice)                                                             \
	X(cuCtxDestroy_v2, CUcontext)                                                                                  \
	X(cuCtxSetCurrent, CUcontext)                                                                                  \
	X(cuCtxSynchronize, void)                                                                                      \
	X(cuCtxEnablePeerAccess, CUcontext, unsigned)                                                                  \
	X(cuCtxDisablePeerAccess, CUcontext)                                                                           \
	X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                                        \
	X(cuMemFree_v2, CUdeviceptr)                                                                                   \
	X(cuMemFreeAsync, CUdeviceptr, void *)                                                                         \
	X(cuMemUnmap, CUdeviceptr, size_t)                                                                             \
	X(cuMemRetainAllocationHandle, CUhandle *, void *)                                                             \
	X(cuMemSetAccess, CUdeviceptr, size_t, const struct access *, size_t)                                          \
	X(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)                                               \
	X(cuMemGetInfo_v2, size_t *, size_t *)                                                                         \
	X(cuPointerGetAttribute, void *, int, CUdeviceptr)                                                             \
	X(cuPointerGetAttributes, unsigned, int *, void **, CUdeviceptr)                                               \
	X(cuPointerSetAttribute, const void *, int, CUdeviceptr)                                                       \
	X(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)                                                          \
	X(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)                                                                \
	X(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t)                                                           \
	X(cuMemcpy, CUdeviceptr, CUdeviceptr, size_t)                                                                  \
	X(cuMemcpyPeer, CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t)                                        \
	X(cuMemsetD32_v2, CUdeviceptr, unsigned, size_t)                                                               \
	X(cuIpcGetMemHandle, struct ipc *, CUdeviceptr)                                                                \
	X(cuIpcOpenMemHandle_v2, CUdeviceptr *, struct ipc, unsigned)                                                  \
	X(cuIpcCloseMemHandle, CUdeviceptr)                                                                            \
	X(cuStreamCreate, void **, unsigned)                                                                           \
	X(cuStreamSynchronize, void *)                                                                                 \
	X(cuStreamBeginCapture_v2, void *, int)                                                                        \
	X(cuStreamEndCapture, void *, void **)                                                                         \
	X(cuLaunchHostFunc, void *, void (*)(void *), void *)

#include "rows.h"

static size_t size, odd;
static int gpus;
static CUcontext contexts[2];

static void row(const char *what, CUresult r) { printf("%s: %d\n", what, r), fflush(stdout); }

static size_t free_mib(void)
{
	size_t free = 0, total;

	cuMemGetInfo_v2(&free, &total);
	return free >> 20;
}

/* Words all over the memory. */
static int words(CUdeviceptr at, uint32_t seed, int check)
{
	int wrong = 0;

	for (size_t i = 0; i < size; i += size / 64) {
		uint32_t value = seed + i, got = value;
		if (check ? cuMemcpyDtoH_v2(&got, at + i, 4) || got != value : cuMemcpyHtoD_v2(at + i, &value, 4))
			wrong++;
	}
	return wrong;
}

static const struct {
	int number, is_address; /* told by its distance from the memory */
	const char *name;
} attributes[] = {
	{1, 0, "context"},	    {2, 0, "memory type"},    {3, 1, "device pointer"},	    {4, 0, "host pointer"},  {6, 0, "sync memops"},
	{8, 0, "is managed"},	    {9, 0, "device ordinal"}, {10, 0, "legacy ipc"},	    {11, 1, "range begins"}, {12, 0, "range size"},
	{13, 0, "mapped"},	    {14, 0, "handle types"},  {15, 0, "gpu direct rdma"},   {16, 0, "access"},	     {17, 0, "pool"},
	{18, 0, "mapping size"},    {19, 1, "mapping base"},  {21, 0, "hw decompression"},
};

/* A context is told by its number. */
static unsigned long long told(size_t which, unsigned long long value, CUdeviceptr base)
{
	if (attributes[which].number == CONTEXT)
		return value == (uintptr_t)contexts[0] ? 100 : value == (uintptr_t)contexts[1] ? 101 : value ? 102 : 0;
	return attributes[which].is_address ? value - base : value;
}

static void describe(CUdeviceptr base, CUdeviceptr at)
{
	enum { COUNT = sizeof attributes / sizeof *attributes };
	CUdeviceptr its = 0;
	size_t n = 0;
	unsigned long long first = 0, id = 0, values[COUNT] = {0};
	int numbers[COUNT];
	void *out[COUNT];

	row("range", cuMemGetAddressRange_v2(&its, &n, at));
	printf("range begins at %lld, %zu bytes\n", (long long)(its - base), n);
	for (size_t i = 0; i < COUNT; i++) {
		unsigned long long value = 0;
		CUresult r = cuPointerGetAttribute(&value, attributes[i].number, at);
		printf("%s: %d, %lld\n", attributes[i].name, r, r ? 0 : (long long)told(i, value, base));
		numbers[i] = attributes[i].number;
		out[i] = &values[i];
	}
	if (cuPointerGetAttributes) {
		row("all attributes", cuPointerGetAttributes(COUNT, numbers, out, at));
		for (size_t i = 0; i < COUNT; i++)
			printf("%s: %lld\n", attributes[i].name, values[i] ? (long long)told(i, values[i], base) : 0);
	}
	row("buffer id", cuPointerGetAttribute(&first, BUFFER_ID, base));
	row("buffer id", cuPointerGetAttribute(&id, BUFFER_ID, at));
	printf("one buffer: %d\n", first == id);
}

static void hex(char *text, const void *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		sprintf(text + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
}

/* Another program opens the memory. */
static void share(char *program, const struct ipc *handle, size_t mib)
{
	char text[sizeof *handle * 2 + 1], size_text[32];
	int status = 0;

	hex(text, handle, sizeof *handle);
	snprintf(size_text, sizeof size_text, "%zu", mib);
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		execl(program, program, size_text, text, (char *)NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);
	printf("the other program: %d\n", status);
}

/* The other program: the first GPU is the second one's neighbour. */
static int opens(const char *text)
{
	struct ipc handle;
	CUdeviceptr at = 0, again = 0;
	CUdeviceptr own;
	uint32_t back = 0;

	for (size_t i = 0; i < sizeof handle; i++) {
		unsigned byte;
		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			fail("no handle");
		handle.bytes[i] = byte;
	}
	for (int d = 0; d < gpus && d < 2; d++) {
		row("other: current", cuCtxSetCurrent(contexts[d]));
		row("other: open", cuIpcOpenMemHandle_v2(&at, handle, 1));
		row("other: words", words(at, 7 + d, 1));
		row("other: words", words(at, 8 + d, 0));
		row("other: allocate", cuMemAlloc_v2(&own, size));
		row("other: copy", cuMemcpyDtoD_v2(own, at, size));
		row("other: synchronize", cuCtxSynchronize());
		row("other: copied words", words(own, 8 + d, 1));
		row("other: free", cuMemFree_v2(own));
		describe(at, at + size / 2);
		row("other: open again", cuIpcOpenMemHandle_v2(&again, handle, 1));
		printf("other: the same address: %d\n", again == at);
		if (again)
			row("other: close", cuIpcCloseMemHandle(again));
		row("other: word", cuMemcpyDtoH_v2(&back, at, 4));
		row("other: free what is another's", cuMemFree_v2(at));
		row("other: close", cuIpcCloseMemHandle(at));
		row("other: close again", cuIpcCloseMemHandle(at));
		again = 0;
	}
	return 0;
}

/* What a stream waits for, and whether it has ended. */
static volatile int go, ended;

static void waits(void *unused)
{
	(void)unused;
	for (int i = 0; !go && i < 2000; i++) /* not for ever: the call may wait for the stream */
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	ended = 1;
}

static void *says_go(void *unused)
{
	(void)unused;
	nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* who does not wait is back before */
	go = 1;
	return NULL;
}

/* What ordinary memory waits for, and what a capture forbids. */
static void streams(void)
{
	enum { NON_BLOCKING = 1, GLOBAL = 0, RELAXED = 2 };
	void *stream, *graph;
	CUdeviceptr at, other = 0;
	pthread_t thread;

	if (!cuLaunchHostFunc || !cuStreamBeginCapture_v2)
		return;
	row("stream", cuStreamCreate(&stream, NON_BLOCKING));
	row("allocate", cuMemAlloc_v2(&at, size));
	row("wait", cuLaunchHostFunc(stream, waits, NULL));
	pthread_create(&thread, NULL, says_go, NULL);
	row("free while the stream waits", cuMemFree_v2(at));
	printf("the stream has ended: %d\n", ended);
	pthread_join(thread, NULL);
	row("synchronize", cuStreamSynchronize(stream));
	go = ended = 0;
	row("allocate", cuMemAlloc_v2(&at, size));
	row("wait", cuLaunchHostFunc(stream, waits, NULL));
	row("allocate while the stream waits", cuMemAlloc_v2(&other, size));
	printf("the stream has ended: %d\n", ended);
	go = 1;
	row("synchronize", cuStreamSynchronize(stream));
	row("free", cuMemFree_v2(other));
	for (int mode = GLOBAL; mode <= RELAXED; mode++) {
		printf("capture in mode %d\n", mode);
		other = 0;
		row("begin", cuStreamBeginCapture_v2(stream, mode));
		row("allocate", cuMemAlloc_v2(&other, size));
		row("end", cuStreamEndCapture(stream, &graph));
		if (other)
			row("free", cuMemFree_v2(other));
		row("begin", cuStreamBeginCapture_v2(stream, mode));
		CUresult r = cuMemFree_v2(at);
		row("free", r);
		row("end", cuStreamEndCapture(stream, &graph));
		row("words", words(at, 1, 0));
		if (!r)
			row("allocate", cuMemAlloc_v2(&at, size));
	}
	row("free", cuMemFree_v2(at));
}

/* A context that ends takes its memory along. */
static void ends(void)
{
	CUcontext c;
	CUdeviceptr at = 0, stays;
	size_t before;

	row("current", cuCtxSetCurrent(contexts[0]));
	row("allocate what stays", cuMemAlloc_v2(&stays, size));
	row("words", words(stays, 5, 0));
	if (cuCtxCreate_v2) {
		row("create", cuCtxCreate_v2(&c, 0, 0)); /* the driver keeps some memory of the first one */
		row("destroy", cuCtxDestroy_v2(c));
		row("current", cuCtxSetCurrent(contexts[0]));
		before = free_mib();
		row("create", cuCtxCreate_v2(&c, 0, 0));
		row("allocate", cuMemAlloc_v2(&at, size));
		describe(at, at);
		row("destroy", cuCtxDestroy_v2(c));
		row("current", cuCtxSetCurrent(contexts[0]));
		printf("memory is free again: %d\n", free_mib() + 8 >= before);
		row("range", cuMemGetAddressRange_v2(&at, NULL, at));
		row("free", cuMemFree_v2(at));
	}
	if (gpus > 1) {
		row("current", cuCtxSetCurrent(contexts[1]));
		before = free_mib();
		row("allocate", cuMemAlloc_v2(&at, size));
		row("retain", cuDevicePrimaryCtxRetain(&contexts[1], 1));
		row("release", cuDevicePrimaryCtxRelease_v2(1));
		row("words", words(at, 5, 0));
		row("release the last one", cuDevicePrimaryCtxRelease_v2(1));
		row("retain", cuDevicePrimaryCtxRetain(&contexts[1], 1));
		row("current", cuCtxSetCurrent(contexts[1]));
		printf("memory is free again: %d\n", free_mib() + 64 >= before);
		row("range", cuMemGetAddressRange_v2(&at, NULL, at));
	}
	if (cuDevicePrimaryCtxReset_v2 && gpus > 1) {
		before = free_mib();
		row("allocate", cuMemAlloc_v2(&at, size));
		row("reset", cuDevicePrimaryCtxReset_v2(1));
		row("range", cuMemGetAddressRange_v2(&at, NULL, at));
		row("retain", cuDevicePrimaryCtxRetain(&contexts[1], 1));
		row("current", cuCtxSetCurrent(contexts[1]));
		printf("memory is free again: %d\n", free_mib() + 64 >= before);
	}
	row("current", cuCtxSetCurrent(contexts[0]));
	describe(stays, stays + size / 2);
	row("words of what stays", words(stays, 5, 1));
	row("free", cuMemFree_v2(stays));
	row("free again", cuMemFree_v2(stays));
}

static void all_of_it(void)
{
	static CUdeviceptr pieces[4096];
	size_t count = 0, bytes = 0;

	for (size_t piece = size; piece >= 2 << 20; piece /= 2)
		while (count < 4096 && !cuMemAlloc_v2(&pieces[count], piece)) {
			count++;
			bytes += piece;
		}
	printf("about %zu MiB in all\n", bytes >> 20);
	printf("free when all is taken: %d\n", free_mib() < 64);
	row("no more", cuMemAlloc_v2(&pieces[count], size));
	while (count)
		if (cuMemFree_v2(pieces[--count]))
			fail("free");
}

static void use(char *program)
{
	CUdeviceptr at, other, far = 0;
	CUhandle handle;
	struct ipc ticket;
	struct access who = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	int one = 1;

	row("allocate", cuMemAlloc_v2(&at, odd));
	printf("multiple of 512: %d, of 2 MiB: %d\n", at % 512 == 0, at % (2 << 20) == 0);
	row("allocate another", cuMemAlloc_v2(&other, size));
	describe(at, at);
	describe(at, at + odd - 1);
	row("words", words(at, 3, 0));
	row("words again", words(at, 3, 1));
	row("set", cuMemsetD32_v2(at, 0x01020304, size / 4));
	row("copy", cuMemcpyDtoD_v2(other, at, size));
	row("copy", cuMemcpyDtoD_v2(at + 4096, other, size - 4096));
	row("unmap", cuMemUnmap(at, size));
	row("unmap a part", cuMemUnmap(at, size / 2));
	row("access", cuMemSetAccess(at, size, &who, 1));
	row("retain", cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
	row("free the middle", cuMemFree_v2(at + size / 2));
	row("free what follows", cuMemFree_v2(at + 512));
	if (cuPointerSetAttribute) {
		row("sync memops", cuPointerSetAttribute(&one, SYNC_MEMOPS, at));
		row("sync memops of the middle", cuPointerSetAttribute(&one, SYNC_MEMOPS, at + size / 2));
		describe(at, at + size / 2);
	}
	if (gpus > 1) {
		row("current", cuCtxSetCurrent(contexts[1]));
		row("allocate there", cuMemAlloc_v2(&far, size));
		row("copy without peer access", cuMemcpyDtoD_v2(far, at, size));
		row("copy back", cuMemcpyDtoD_v2(other, far, size));
		if (cuMemcpyPeer)
			row("copy between contexts", cuMemcpyPeer(far, contexts[1], at, contexts[0], size));
		row("peer access", cuCtxEnablePeerAccess(contexts[0], 0));
		row("copy", cuMemcpyDtoD_v2(far, at, size));
		row("synchronize", cuCtxSynchronize()); /* the copy needs it */
		row("no peer access", cuCtxDisablePeerAccess(contexts[0]));
		row("synchronize", cuCtxSynchronize());
		row("current", cuCtxSetCurrent(contexts[0]));
	}
	row("free", cuMemFree_v2(other));
	row("free", cuMemFree_v2(at));
	row("free again", cuMemFree_v2(at));
	row("words", words(at, 3, 1) > 0);
	row("range", cuMemGetAddressRange_v2(&at, NULL, at));
	if (cuMemFreeAsync) {
		row("allocate", cuMemAlloc_v2(&at, size));
		row("free in order", cuMemFreeAsync(at, NULL));
		row("synchronize", cuCtxSynchronize());
		row("free again", cuMemFree_v2(at));
		row("range", cuMemGetAddressRange_v2(&at, NULL, at));
	}
	row("free nothing", cuMemFree_v2(0));
	row("allocate nothing", cuMemAlloc_v2(&at, 0));
	row("allocate nowhere", cuMemAlloc_v2(NULL, size));
	row("allocate too much", cuMemAlloc_v2(&at, 1ull << 45));
	row("current", cuCtxSetCurrent(NULL));
	row("allocate without a context", cuMemAlloc_v2(&at, size));
	row("current", cuCtxSetCurrent(contexts[0]));

	row("allocate", cuMemAlloc_v2(&at, odd));
	row("words", words(at, 7, 0));
	row("handle", cuIpcGetMemHandle(&ticket, at));
	row("open here", cuIpcOpenMemHandle_v2(&other, ticket, 1));
	share(program, &ticket, size >> 20);
	row("words of the other", words(at, gpus > 1 ? 9 : 8, 1));
	row("close what is not opened", cuIpcCloseMemHandle(at));
	row("free", cuMemFree_v2(at));
	row("handle of nothing", cuIpcGetMemHandle(&ticket, at));
	if (far) {
		row("current", cuCtxSetCurrent(contexts[1]));
		row("free", cuMemFree_v2(far));
	}
}

int main(int argc, char **argv)
{
	if (argc < 2 || !(size = strtoull(argv[1], NULL, 0) << 20))
		fail("usage: ordinary MIB");
	odd = size + 1000;
	load_driver(0);
	row("cuInit", cuInit(0));
	row("count", cuDeviceGetCount(&gpus));
	for (int i = 0; i < gpus && i < 2; i++)
		row("context", cuDevicePrimaryCtxRetain(&contexts[i], i));
	row("current", cuCtxSetCurrent(contexts[0]));
	if (argc > 2)
		return opens(argv[2]);
	size_t before = free_mib();
	use(argv[0]);
	row("current", cuCtxSetCurrent(contexts[0]));
	streams();
	all_of_it();
	printf("memory is free again: %d\n", free_mib() + 64 >= before);
	ends();
	return 0;
}
