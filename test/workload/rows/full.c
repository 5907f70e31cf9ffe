/*
 * full.c: how much memory a GPU has for cuMemAlloc, in pieces of each size that it is given, in MiB; then once more
 * with holes, and in pieces of twice the size.
 */
#include <stdint.h>

#define CALLS(X)                                                                                                       \
	X(cuInit, unsigned)                                                                                            \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                             \
	X(cuCtxSetCurrent, CUcontext)                                                                                  \
	X(cuMemAlloc_v2, CUdeviceptr *, size_t)                                                                        \
	X(cuMemFree_v2, CUdeviceptr)                                                                                   \
	X(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)                                                          \
	X(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)

#include "rows.h"

#define MOST 200000
static CUdeviceptr pieces[MOST];
static size_t count;

/* Takes all that there is, and marks each piece. */
static void take(size_t size)
{
	for (; count < MOST && !cuMemAlloc_v2(&pieces[count], size); count++) {
		uint64_t mark = count;
		if (cuMemcpyHtoD_v2(pieces[count] + size - sizeof mark, &mark, sizeof mark))
			fail("a piece cannot be written to");
	}
}

static void compare(size_t from, size_t size)
{
	for (size_t i = from; i < count; i++) {
		uint64_t mark = ~i;
		if (pieces[i] && (cuMemcpyDtoH_v2(&mark, pieces[i] + size - sizeof mark, sizeof mark) || mark != i))
			fail("a piece is not what it was");
	}
}

static void drop(size_t from, size_t step)
{
	for (size_t i = from; i < count; i += step)
		if (pieces[i] && cuMemFree_v2(pieces[i]))
			fail("a piece cannot be freed");
		else
			pieces[i] = 0;
}

int main(int argc, char **argv)
{
	CUcontext context;

	load_driver(1);
	if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context))
		fail("there is no GPU");
	for (int i = 1; i < argc; i++) {
		const size_t size = strtoul(argv[i], NULL, 10) << 20;
		size_t first;

		take(size);
		first = count;
		printf("pieces of %s MiB:\nabout %zu MiB\n", argv[i], first * (size >> 20));
		drop(0, 2);
		take(2 * size);
		printf("with holes:\nabout %zu MiB\n", (first / 2 * size + (count - first) * 2 * size) >> 20);
		compare(first, 2 * size);
		count = first;
		compare(0, size);
		drop(0, 1);
		count = 0;
	}
	return 0;
}
