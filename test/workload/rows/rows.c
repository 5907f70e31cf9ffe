/*
 * rows.c: what a program can see of memory that it makes by cuMemCreate, a line for each
 * thing. The lines are the same with the guest and without it. It takes the size in MiB.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../internal/kit/guest/lib/cuda.h"

#define CALLS(X)                                                                                                       \
	X(cuInit, unsigned)                                                                                            \
	X(cuDeviceGetAttribute, int *, int, CUdevice)                                                                  \
	X(cuDeviceGetCount, int *)                                                                                     \
	X(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)                                                             \
	X(cuCtxSetCurrent, CUcontext)                                                                                  \
	X(cuCtxSynchronize, void)                                                                                      \
	X(cuMemCreate, CUhandle *, size_t, const struct properties *, unsigned long long)                              \
	X(cuMemRelease, CUhandle)                                                                                      \
	X(cuMemMap, CUdeviceptr, size_t, size_t, CUhandle, unsigned long long)                                         \
	X(cuMemUnmap, CUdeviceptr, size_t)                                                                             \
	X(cuMemRetainAllocationHandle, CUhandle *, void *)                                                             \
	X(cuMemGetAllocationPropertiesFromHandle, struct properties *, CUhandle)                                       \
	X(cuMemExportToShareableHandle, void *, CUhandle, int, unsigned long long)                                     \
	X(cuMemImportFromShareableHandle, CUhandle *, void *, int)                                                     \
	X(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)                         \
	X(cuMemAddressFree, CUdeviceptr, size_t)                                                                       \
	X(cuMemSetAccess, CUdeviceptr, size_t, const struct access *, size_t)                                          \
	X(cuMemGetAccess, unsigned long long *, const struct location *, CUdeviceptr)                                  \
	X(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)                                               \
	X(cuMemGetInfo_v2, size_t *, size_t *)                                                                         \
	X(cuPointerGetAttribute, void *, int, CUdeviceptr)                                                             \
	X(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)                                                          \
	X(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)                                                                \
	X(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *)

#include "rows.h"

static size_t size, step;
static struct properties plain, exportable;

static void row(const char *what, CUresult r) { printf("%s: %d\n", what, r), fflush(stdout); }

/* Words all over the memory, also at both sides of each step of it. */
static int words(CUdeviceptr at, uint32_t seed, int check)
{
	int wrong = 0;

	for (size_t i = 0; i < size; i += step)
		for (int side = 0; side < 2; side++) {
			uint32_t value = seed + i / step * 2 + side, got = value;
			CUdeviceptr p = at + (side ? i + step - 4 : i);
			if (check ? cuMemcpyDtoH_v2(&got, p, 4) || got != value : cuMemcpyHtoD_v2(p, &value, 4))
				wrong++;
		}
	return wrong;
}

/* A copy over all borders at once. */
static int whole(CUdeviceptr at)
{
	unsigned char *out = malloc(size), *in = malloc(size);
	int same;

	for (size_t i = 0; i < size; i++)
		out[i] = (unsigned char)(i * 31 + (i >> 20));
	same = !cuMemcpyHtoD_v2(at, out, size) && !cuMemcpyDtoH_v2(in, at, size) && !memcmp(in, out, size);
	free(out), free(in);
	return same;
}

static CUresult access_for(CUdeviceptr at, int gpus)
{
	struct access who[8];

	for (int i = 0; i < gpus; i++)
		who[i] = (struct access){{CU_MEM_LOCATION_TYPE_DEVICE, i}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return cuMemSetAccess(at, size, who, gpus);
}

static void describe(CUdeviceptr base, CUdeviceptr at)
{
	CUdeviceptr its = 0;
	size_t n = 0;
	unsigned long long first = 0, id = 0, allowed = 0;

	row("range", cuMemGetAddressRange_v2(&its, &n, at));
	printf("range begins at %lld, %zu MiB\n", (long long)(its - base), n >> 20);
	row("mapping base", cuPointerGetAttribute(&its, MAPPING_BASE_ADDR, at));
	row("mapping size", cuPointerGetAttribute(&n, MAPPING_SIZE, at));
	printf("mapping begins at %lld, %zu MiB\n", (long long)(its - base), n >> 20);
	row("buffer id", cuPointerGetAttribute(&first, BUFFER_ID, base));
	row("buffer id", cuPointerGetAttribute(&id, BUFFER_ID, at));
	printf("one buffer: %d\n", first == id);
	row("allowed types", cuPointerGetAttribute(&allowed, ALLOWED_HANDLE_TYPES, at));
	printf("allowed types: %llu\n", allowed);
}

static void forked(void)
{
	CUhandle h;

	fflush(stdout);
	pid_t child = fork();
	int status;
	if (!child)
		_exit(cuMemCreate(&h, size, &plain, 0));
	waitpid(child, &status, 0);
	printf("in a forked child: %d\n", WEXITSTATUS(status));
}

static void use(const struct properties *wanted, int gpus, int share)
{
	struct properties its = {0};
	CUhandle h, again, imported;
	CUdeviceptr at, second;
	unsigned long long flags = 0;
	struct location last = {CU_MEM_LOCATION_TYPE_DEVICE, gpus - 1};
	int fd = -1;

	row("create", cuMemCreate(&h, size, wanted, 0));
	row("reserve", cuMemAddressReserve(&at, size, 0, 0, 0));
	row("map too much", cuMemMap(at, 2 * size, 0, h, 0));
	row("map nothing", cuMemMap(at, 0, 0, h, 0));
	row("map a half", cuMemMap(at, size / 2, 0, h, 0));
	row("map a half", cuMemMap(at, size / 2, size / 2, h, 0));
	row("map from the middle", cuMemMap(at, size, size / 2, h, 0));
	row("map an odd size", cuMemMap(at, size + 1, 0, h, 0));
	row("map an odd address", cuMemMap(at + 1, size, 0, h, 0));
	row("map with flags", cuMemMap(at, size, 0, h, 1));
	row("map", cuMemMap(at, size, 0, h, 0));
	row("map there again", cuMemMap(at, size, 0, h, 0));
	row("access", access_for(at, gpus));
	row("who has access", cuMemGetAccess(&flags, &last, at + size - step));
	printf("access of the last GPU: %llu\n", flags);
	row("words", words(at, 7, 0));
	row("words again", words(at, 7, 1));
	printf("copied whole: %d\n", whole(at));
	row("words", words(at, 9, 0));
	describe(at, at);
	describe(at, at + size - 4);
	row("properties", cuMemGetAllocationPropertiesFromHandle(&its, h));
	printf("type %d, handles %d, GPU %d\n", its.type, its.handle_types, its.location.id);
	if (!wanted->handle_types)
		row("export without a type", cuMemExportToShareableHandle(&fd, h, 1, 0));
	row("retain", cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + size / 2)));
	printf("the same handle: %d\n", again == h);
	row("release", cuMemRelease(h));
	if (share) {
		row("export", cuMemExportToShareableHandle(&fd, again, 1, 0));
		row("words after the export", words(at, 9, 1));
		row("import", cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1));
		row("reserve", cuMemAddressReserve(&second, size, 0, 0, 0));
		row("map", cuMemMap(second, size, 0, imported, 0));
		row("access", access_for(second, gpus));
		row("words of the import", words(second, 9, 1));
		row("words of the import", words(second, 11, 0));
		row("synchronize", cuCtxSynchronize());
		row("words of the original", words(at, 11, 1));
		row("unmap", cuMemUnmap(second, size));
		row("free", cuMemAddressFree(second, size));
		row("release", cuMemRelease(imported));
		close(fd);
		describe(at, at + size - 4);
	}
	row("release again", cuMemRelease(again));
	row("words without a handle", words(at, share ? 11 : 9, 1));
	row("unmap too much", cuMemUnmap(at, 2 * size));
	row("unmap", cuMemUnmap(at, size));
	row("unmap again", cuMemUnmap(at, size));
	row("free", cuMemAddressFree(at, size));
}

int main(int argc, char **argv)
{
	void *library, *create = NULL;
	CUcontext context;
	CUhandle h;
	int gpus = 0;

	if (argc != 4 || !(size = strtoull(argv[1], NULL, 0) << 20) || !(step = strtoull(argv[2], NULL, 0) << 20))
		fail("usage: rows MIB STEP-MIB SHARE");
	library = load_driver(1);
	printf("the next dlsym is the one that was called: %d\n", dlsym(RTLD_NEXT, "dlsym") == (void *)dlsym);
	row("dlsym of nothing", dlsym(library, "cuNothing") != NULL);
	row("cuGetProcAddress", cuGetProcAddress_v2("cuMemCreate", &create, 12000, 0, NULL));
	printf("one address: %d\n", create == (void *)cuMemCreate);
	fflush(stdout);
	pid_t child = fork(); /* before CUDA is used, so a child can use it */
	if (child) {
		int status = 1;
		waitpid(child, &status, 0);
		return status != 0;
	}
	row("cuInit", cuInit(0));
	row("count", cuDeviceGetCount(&gpus));
	int fabric = -1, multicast = -1;
	cuDeviceGetAttribute(&fabric, 128, 0);
	cuDeviceGetAttribute(&multicast, 132, 0);
	printf("fabric handles and multicast: %d %d\n", fabric, multicast);
	for (int i = gpus - 1; i >= 0; i--)
		row("context", cuDevicePrimaryCtxRetain(&context, i));
	row("current", cuCtxSetCurrent(context));
	plain = (struct properties){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	exportable = plain;
	exportable.handle_types = 1;
	row("create of nothing", cuMemCreate(&h, 0, &plain, 0));
	row("create of an odd size", cuMemCreate(&h, size + 1, &plain, 0));
	row("create, without properties", cuMemCreate(&h, size, NULL, 0));
	row("create, too large", cuMemCreate(&h, 1ull << 45, &plain, 0));
	use(&plain, gpus, 0);
	use(&exportable, gpus, 0);
	use(&exportable, gpus, atoi(argv[3]));
	size_t before = 0, after = 0, total;
	cuMemGetInfo_v2(&before, &total);
	for (int i = 0; i < 20; i++)
		if (cuMemCreate(&h, size, &plain, 0) || cuMemRelease(h))
			fail("create and release");
	cuMemGetInfo_v2(&after, &total);
	printf("memory is free again: %d\n", before == after);
	forked();
	return 0;
}
