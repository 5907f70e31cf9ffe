/*
 * alloc.c: cuMemAlloc of 16 MiB and more is made of parts, too. Beside each such memory the
 * driver makes a small one, its companion, at the same moment and in the same context, and
 * gives it back first. So the driver itself says what is allowed now (in a capture, after an
 * error), waits for what it waits for, and knows whose the memory is.
 */
#include <stdlib.h>

#include "alloc.h"

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

static CUdevice primary_of(CUcontext context)
{
	CUcontext primary = NULL;
	CUdevice device;
	unsigned flags;
	int active = 0;

	if (driver.cuCtxGetDevice(&device) || driver.cuDevicePrimaryCtxGetState(device, &flags, &active) || !active ||
	    driver.cuDevicePrimaryCtxRetain(&primary, device))
		return -1;
	driver.cuDevicePrimaryCtxRelease_v2(device);
	return primary == context ? device : -1;
}

static unsigned long long births;

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
	driver.cuCtxGetCurrent(&m->context);
	m->primary_of = primary_of(m->context);
	driver.cuPointerGetAttribute(&m->id, BUFFER_ID, companion);
	ALONE;
	m->born = ++births;
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
	if (driver_forked() || !out || size < LEAST || driver.cuCtxGetDevice(&device) || !memory_is_ours(size, device) || !memory_can_be_served())
		return driver.cuMemAlloc_v2(out, size);
	UNCANCELLED;
	CUresult r = driver.cuMemAlloc_v2(&companion, 1);
	if (r || !allocate(out, size, device, companion))
		return r;
	driver.cuMemFree_v2(companion);
	return driver.cuMemAlloc_v2(out, size); /* it may have room where there is none for parts, or says why not */
}

/* Which memory is at the companion's address: 0 if there is none, or the driver does not say. */
static unsigned long long id_at_companion(const struct memory *m)
{
	unsigned long long id;
	return driver.cuPointerGetAttribute(&id, BUFFER_ID, m->companion) ? 0 : id;
}

/* Whether the companion's address is another memory's: its context has ended in a way that is not served. */
static bool is_stale(const struct memory *m)
{
	const unsigned long long id = id_at_companion(m);
	return id && id != m->id;
}

bool ordinary_lives(const struct memory *m)
{
	const unsigned long long id = id_at_companion(m);
	return id && id == m->id;
}

struct memory *ordinary_at(CUdeviceptr at)
{
	CUdeviceptr begin;
	struct memory *m = memory_at(at, &begin);

	return m && m->companion ? m : NULL;
}

struct memory *ordinary_begin_end(CUdeviceptr at, bool opened, bool *stays)
{
	ALONE;
	struct memory *m = ordinary_at(at);
	if (!m || m->mappings->at != at || !m->opened == opened)
		return NULL;
	if (opened && (*stays = m->opened > 1)) {
		m->opened--;
		return NULL;
	}
	if (m->ending || is_stale(m))
		return NULL;
	m->ending = true;
	return m;
}

CUresult ordinary_end(struct memory *m, CUresult freed)
{
	{
		ALONE;
		m->ending = false;
		if (freed)
			return freed;
		memory_leave(m);
	}
	withdraw(m);
	return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
	struct memory *m;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	UNCANCELLED;
	if (driver_forked() || !(m = ordinary_begin_end(at, false, NULL)))
		return driver.cuMemFree_v2(at);
	return ordinary_end(m, driver.cuMemFree_v2(m->companion));
}

static bool is_ordinary(CUdeviceptr at)
{
	ALONE;
	return ordinary_at(at);
}

/* The driver frees such memory when the stream has come so far, or later. Here it is waited for. */
static CUresult free_in_order(CUdeviceptr at, void *stream, CUresult (*call)(CUdeviceptr, void *), bool own_stream)
{
	void *which = !stream && own_stream ? (void *)2 : stream; /* CU_STREAM_PER_THREAD */
	struct memory *m;
	int capturing = 0;
	CUresult r;

	UNCANCELLED;
	if (driver_forked() || !is_ordinary(at) || driver.cuStreamIsCapturing(which, &capturing) || capturing || !(m = ordinary_begin_end(at, false, NULL)))
		return call(at, stream);
	if (!(r = driver.cuStreamSynchronize(which)))
		r = call(m->companion, stream);
	return ordinary_end(m, r);
}

CUresult cuMemFreeAsync(CUdeviceptr at, void *stream)
{
	return driver_known() ? free_in_order(at, stream, driver.cuMemFreeAsync, false) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, void *stream)
{
	return driver_known() ? free_in_order(at, stream, driver.cuMemFreeAsync_ptsz, true) : CUDA_ERROR_NOT_INITIALIZED;
}

static unsigned long long births_until_now(void)
{
	if (driver_forked())
		return 0;
	ALONE;
	return births;
}

/* A context has ended, and takes along what was born until then: that of CONTEXT, or of the primary one of a device. */
static void ended(CUcontext context, CUdevice device, unsigned long long until)
{
	while (until) {
		struct memory *m;
		{
			ALONE;
			for (m = memory_first(); m; m = m->next)
				if (m->companion && !m->ending && m->born <= until && (context ? m->context == context : m->primary_of == device))
					break;
			if (!m)
				return;
			memory_leave(m);
		}
		withdraw(m);
	}
}

/* A primary context that is released ends when the last one who has it does so. */
static bool is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;

	return driver.cuDevicePrimaryCtxGetState(device, &flags, &active) || active;
}

#define ENDS(name, type, goes_on, context, device)                                                                     \
	CUresult name(type which)                                                                                      \
	{                                                                                                              \
		if (!driver_known())                                                                                   \
			return CUDA_ERROR_NOT_INITIALIZED;                                                             \
		UNCANCELLED;                                                                                           \
		const unsigned long long until = births_until_now();                                                   \
		const CUresult r = driver.name(which);                                                                 \
		if (!r && !(goes_on))                                                                                  \
			ended(context, device, until);                                                                 \
		return r;                                                                                              \
	}
ENDS(cuCtxDetach, CUcontext, !which, which, -1)
ENDS(cuCtxDestroy, CUcontext, !which, which, -1)
ENDS(cuCtxDestroy_v2, CUcontext, !which, which, -1)
ENDS(cuDevicePrimaryCtxRelease, CUdevice, is_active(which), NULL, which)
ENDS(cuDevicePrimaryCtxRelease_v2, CUdevice, is_active(which), NULL, which)
ENDS(cuDevicePrimaryCtxReset, CUdevice, false, NULL, which)
ENDS(cuDevicePrimaryCtxReset_v2, CUdevice, false, NULL, which)
