/*
 * vmm.c: virtual memory management. A handle is an allocation without an address
 * until it is mapped. It is mapped as a whole, once: what it holds lies in the
 * memory file where its address says.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "held.h"
#include "imports.h"
#include "peer.h"

#define GRANULE (2ull << 20)

static bool is_handle(const struct allocation *a) { return !a->context && !a->pool && !a->released; }

static CUresult same(struct allocation *a, void *handle) { return a == handle && is_handle(a); }

/* The allocation of a handle, or NULL. */
static struct allocation *handle_of(CUmemHandle handle)
{
	void *a = (void *)(uintptr_t)handle;
	return memory_each(same, a) ? a : NULL;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option)
{
	(void)option;
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out || !prop)
		return CUDA_ERROR_INVALID_VALUE;
	*out = GRANULE;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t n, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
	(void)alignment, (void)at;
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!out || !n || n % GRANULE || flags)
		r = CUDA_ERROR_INVALID_VALUE;
	else
		*out = memory_reserve(n);
	gate_leave();
	return r;
}

/* Addresses are not used again. */
EXPORT CUresult cuMemAddressFree(CUdeviceptr p, size_t n)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	gate_leave();
	return p && n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemCreate(CUmemHandle *out, size_t n, const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	bool numa = prop && prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
	int device = !prop ? -1 : numa ? 0 : location_device(prop->location);
	if (!out || !n || n % GRANULE || flags || device < 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		struct allocation *a = memory_new(numa ? MEMORY_HOST_NUMA : MEMORY_DEVICE, device, NULL, n);
		if (a) {
			a->va = 0;
			a->handle_types = prop->handleTypes;
			*out = (CUmemHandle)(uintptr_t)a;
		} else {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuMemRelease(CUmemHandle handle)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = handle_of(handle);
	if (!a)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (a->retained)
		a->retained--;
	else if (a->va)
		a->released = true;
	else
		memory_remove_allocation(a);
	gate_leave();
	return r;
}

EXPORT CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemHandle handle, unsigned long long flags)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = handle_of(handle);
	if (!a || !p || p % GRANULE || !n || flags || memory_find(p))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (offset || n != a->size || a->va)
		r = CUDA_ERROR_NOT_SUPPORTED; /* a second time: not simulated */
	else if (a->va = p, a->kind != MEMORY_IMPORTED && !a->exported[0]) /* others know where that is */
		a->offset = p - SIM_VA_BASE;
	gate_leave();
	return r;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr p, size_t n)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	for (CUdeviceptr at = p; at < p + n && !r;) {
		struct allocation *a = memory_find(at);
		if (!a) { /* what is not mapped is left out */
			at += GRANULE;
		} else if (a->context || a->va != at || a->size > p + n - at) {
			r = CUDA_ERROR_INVALID_VALUE;
		} else {
			at += a->size;
			a->va = a->access = 0;
			if (a->released)
				memory_remove_allocation(a);
		}
	}
	held_note();
	gate_leave();
	return r;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *access, size_t count)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!n || !count || !access)
		r = CUDA_ERROR_INVALID_VALUE;
	for (CUdeviceptr at = p; at < p + n && !r;) {
		struct allocation *a = memory_find(at);
		if (!a || a->context) {
			r = CUDA_ERROR_INVALID_VALUE;
			break;
		}
		for (size_t i = 0; i < count && !r; i++) {
			int device = location_device(access[i].location);
			if (device < 0)
				r = CUDA_ERROR_INVALID_DEVICE;
			else if (!access[i].flags)
				a->access &= ~(1u << device);
			else if (a->kind == MEMORY_DEVICE && device != a->device && a->size >= sim.host.peer_limit && !a->fabric)
				r = CUDA_ERROR_INVALID_HANDLE; /* see peer.h */
			else
				a->access |= 1u << device;
		}
		at = a->va + a->size;
	}
	held_note();
	gate_leave();
	return r;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = memory_find(p);
	int device = location ? location_device(*location) : -1;
	if (!flags || !a || a->context || device < 0)
		r = CUDA_ERROR_INVALID_VALUE;
	else
		*flags = a->access >> device & 1 ? 3 : 0;
	gate_leave();
	return r;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *out, void *p)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = memory_find((CUdeviceptr)(uintptr_t)p);
	if (!out || !a || a->context || a->pool) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		if (!a->released)
			a->retained++;
		a->released = false;
		*out = (CUmemHandle)(uintptr_t)a;
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemHandle handle)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = handle_of(handle);
	if (!out || !a)
		r = CUDA_ERROR_INVALID_VALUE;
	else
		*out = (CUmemAllocationProp){CU_MEM_ALLOCATION_TYPE_PINNED, a->handle_types, {CU_MEM_LOCATION_TYPE_DEVICE, a->device}, NULL, {0}};
	gate_leave();
	return r;
}

/* Of what is mapped. An allocation that is mapped is known by where it lies. */
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *n, CUdeviceptr p)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = memory_find(p);
	if (a && base)
		*base = a->va;
	if (a && n)
		*n = a->asked;
	gate_leave();
	return a ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr p)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = memory_find(p);
	if (!out || !a)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
		*(CUcontext *)out = a->context;
	else if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID)
		*(unsigned long long *)out = (uintptr_t)a;
	else if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
		*(CUdeviceptr *)out = a->va;
	else if (attribute == CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
		*(size_t *)out = (a->size + GRANULE - 1) / GRANULE * GRANULE;
	else
		r = CUDA_ERROR_NOT_SUPPORTED; /* not simulated */
	gate_leave();
	return r;
}

/* What an exported descriptor says. */
struct export {
	char magic[16], exporter[SIM_NAME], name[SIM_NAME];
	uint64_t offset, size;
	int gpu;
};
#define EXPORT_MAGIC "cudasim-export1"

/* Of memory that is mapped: before that nobody knows where its content is. */
EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemHandle handle, int type, unsigned long long flags)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct allocation *a = handle_of(handle);
	struct export e = {.magic = EXPORT_MAGIC};
	/* No other memory than a process's own; measured on 580. */
	if (!out || !a || a->kind != MEMORY_DEVICE || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(a->handle_types & type) || flags)
		r = CUDA_ERROR_INVALID_VALUE;
	else if ((*(int *)out = export_open(&sim.host, e.name)) < 0)
		r = CUDA_ERROR_OPERATING_SYSTEM;
	else {
		e.offset = a->offset;
		e.size = a->size;
		e.gpu = sim.device[a->device].gpu;
		memcpy(e.exporter, sim.name, sizeof e.exporter);
		memcpy(a->exported, e.name, sizeof a->exported);
		if (pwrite(*(int *)out, &e, sizeof e, 0) != sizeof e)
			r = CUDA_ERROR_OPERATING_SYSTEM;
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemHandle *out, void *descriptor, int type)
{
	struct export e;
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pread((int)(intptr_t)descriptor, &e, sizeof e, 0) != sizeof e ||
	    memcmp(e.magic, EXPORT_MAGIC, sizeof e.magic)) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		struct allocation *a = memory_new(MEMORY_IMPORTED, 0, NULL, e.size);
		if (a) {
			a->va = 0;
			a->offset = e.offset;
			a->exporter_gpu = e.gpu;
			bool outlives = memory_outlives(e.name, e.gpu);
			memcpy(a->exporter, outlives ? e.name : e.exporter, sizeof a->exporter);
			a->held = outlives ? fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 200) : 0;
			import_note(a);
			*out = (CUmemHandle)(uintptr_t)a;
		} else {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	gate_leave();
	return r;
}
