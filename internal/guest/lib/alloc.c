/*
 * alloc.c: cuMemAlloc of 512 MiB and more is made of parts, too. Beside each such memory the
 * driver makes a small one, its companion, at the same moment and in the same context, and
 * gives it back first. So the driver itself says what is allowed now (in a capture, after an
 * error), waits for what it waits for, and knows whose the memory is and whether that context
 * has ended.
 */
#include <stdlib.h>

#include "alloc.h"

#define STEP (2ull << 20) /* of the sizes that the driver takes for a part */

/* The GPUs that can reach the memory may: a copy needs no more, and peer access to parts cannot be enabled. */
static CUresult allow(CUdeviceptr at, size_t size, CUdevice owner)
{
	struct access who[64];
	size_t count = 0;
	int n = 0;
	CUresult r = driver.cuDeviceGetCount(&n);

	for (int d = 0; d < n && d < 64; d++) {
		int can = d == owner;
		if (can || (!driver.cuDeviceCanAccessPeer(&can, d, owner) && can))
			who[count++] = (struct access){{CU_MEM_LOCATION_TYPE_DEVICE, d}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	}
	return r ? r : driver.cuMemSetAccess(at, size, who, count);
}

CUresult ordinary_place(struct memory *m, CUdeviceptr companion, CUdeviceptr *out)
{
	struct mapping *p = calloc(1, sizeof *p);
	CUresult r = p ? driver.cuMemAddressReserve(&p->at, m->size, 0, 0, 0) : CUDA_ERROR_OUT_OF_MEMORY;

	if (r) {
		free(p);
		return r;
	}
	if (!(r = memory_map(m, p->at)) && (r = allow(p->at, m->size, m->wanted.location.id)))
		driver.cuMemUnmap(p->at, m->size);
	if (r) {
		driver.cuMemAddressFree(p->at, m->size);
		free(p);
		return r;
	}
	*out = p->at;
	m->mappings = p;
	m->companion = companion;
	ALONE;
	memory_enter(m);
	return CUDA_SUCCESS;
}

static void withdraw(struct memory *m)
{
	driver.cuMemUnmap(m->mappings->at, m->size);
	driver.cuMemAddressFree(m->mappings->at, m->size);
	memory_release(m);
}

static CUresult allocate(CUdeviceptr *out, size_t size, CUdevice device, CUdeviceptr companion)
{
	struct properties wanted = {CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {CU_MEM_LOCATION_TYPE_DEVICE, device}, NULL, {0}};
	struct memory *m;
	int rdma = 0, decompresses = 0;

	driver.cuPointerGetAttribute(&rdma, IS_GPU_DIRECT_RDMA_CAPABLE, companion);
	driver.cuPointerGetAttribute(&decompresses, IS_HW_DECOMPRESS_CAPABLE, companion);
	wanted.flags.rdma = rdma;
	wanted.flags.usage = decompresses ? CU_MEM_CREATE_USAGE_HW_DECOMPRESS : 0;
	CUresult r = memory_create(&m, (size + STEP - 1) / STEP * STEP, &wanted);
	if (r)
		return r;
	m->asked = size;
	if ((r = ordinary_place(m, companion, out)))
		memory_release(m);
	return r;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	CUdeviceptr companion;
	CUdevice device;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (driver_forked() || !out || size < LIMIT || driver.cuCtxGetDevice(&device) || !memory_is_ours(size, device))
		return driver.cuMemAlloc_v2(out, size);
	CUresult r = driver.cuMemAlloc_v2(&companion, 1);
	if (r || !allocate(out, size, device, companion))
		return r;
	driver.cuMemFree_v2(companion);
	return driver.cuMemAlloc_v2(out, size); /* it may have room where there is none for parts, or says why not */
}

CUresult ordinary_end(struct memory *m)
{
	CUresult r = driver.cuMemFree_v2(m->companion);

	if (r) {
		ALONE;
		memory_enter(m);
		return r;
	}
	withdraw(m);
	return CUDA_SUCCESS;
}

struct memory *ordinary_take_out(CUdeviceptr at, bool opened)
{
	CUdeviceptr begin;

	ALONE;
	struct memory *m = memory_at(at, &begin);
	if (!m || !m->companion || begin != at || !m->opened == opened)
		return NULL;
	memory_leave(m);
	return m;
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
	struct memory *m;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (driver_forked() || !(m = ordinary_take_out(at, false)))
		return driver.cuMemFree_v2(at);
	return ordinary_end(m);
}

/* Ordinary memory whose context has ended. */
static struct memory *take_out_an_orphan(void)
{
	CUcontext context;

	ALONE;
	for (struct memory *m = memory_first(); m; m = m->next)
		if (m->companion && driver.cuPointerGetAttribute(&context, CONTEXT, m->companion)) {
			memory_leave(m);
			return m;
		}
	return NULL;
}

static CUresult after_a_context(CUresult r)
{
	struct memory *m;

	while (!driver_forked() && (m = take_out_an_orphan()))
		withdraw(m);
	return r;
}

#define ENDS_A_CONTEXT(name, type)                                                                                     \
	CUresult name(type whose)                                                                                      \
	{                                                                                                              \
		return driver_known() ? after_a_context(driver.name(whose)) : CUDA_ERROR_NOT_INITIALIZED;              \
	}
ENDS_A_CONTEXT(cuCtxDestroy, CUcontext)
ENDS_A_CONTEXT(cuCtxDestroy_v2, CUcontext)
ENDS_A_CONTEXT(cuDevicePrimaryCtxRelease, CUdevice)
ENDS_A_CONTEXT(cuDevicePrimaryCtxRelease_v2, CUdevice)
ENDS_A_CONTEXT(cuDevicePrimaryCtxReset, CUdevice)
ENDS_A_CONTEXT(cuDevicePrimaryCtxReset_v2, CUdevice)
