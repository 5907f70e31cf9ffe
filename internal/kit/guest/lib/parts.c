/*
 * parts.c: memory of 16 MiB and more is made of parts. The driver keeps a fabric object for
 * each allocation of 512 MiB and more which another GPU can reach, and loses it at a restore.
 * It has none for smaller ones, and what is made here can be taken away and made anew
 * (agent.c). A program has one handle for all parts, and maps them one behind the other, so
 * that it sees no difference.
 */
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "alloc.h"
#include "gate.h"
#include "parts.h"

static struct memory *all;
static uint32_t lock; /* 1: taken, 2: and somebody waits. It is tried where glibc's could not be without newer symbols */

bool parts_try(void)
{
	uint32_t none = 0;

	return __atomic_compare_exchange_n(&lock, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

bool parts_take(void)
{
	if (!parts_try())
		while (__atomic_exchange_n(&lock, 2, __ATOMIC_ACQUIRE))
			futex_wait(&lock, 2, NULL);
	return true;
}

void parts_give(const bool *unused)
{
	(void)unused;
	if (__atomic_exchange_n(&lock, 0, __ATOMIC_RELEASE) == 2)
		futex_wake(&lock);
}

bool parts_inherited(void)
{
	if (!all)
		lock = 0; /* another thread of the parent may have had it */
	return all;
}

/* A program's handle is the address of the record, which is no handle of the driver's. */
static struct memory *memory_of(CUhandle handle)
{
	for (struct memory *m = all; m; m = m->next)
		if ((CUhandle)(uintptr_t)m == handle && m->references)
			return m;
	return NULL;
}

struct memory *memory_at(CUdeviceptr at, CUdeviceptr *begin)
{
	for (struct memory *m = all; m; m = m->next)
		for (struct mapping *p = m->mappings; p; p = p->next)
			if (at - p->at < m->size) {
				*begin = p->at;
				return m;
			}
	return NULL;
}

size_t memory_length(const struct memory *m, size_t part)
{
	return part + 1 < m->count ? m->part_size : m->size - part * m->part_size;
}

static void release_parts(CUhandle *parts, size_t count)
{
	while (count)
		driver.cuMemRelease(parts[--count]);
}

void memory_enter(struct memory *m)
{
	m->next = all;
	all = m;
}

bool memory_can_be_served(void)
{
	return agent_started() && ipc_started();
}

void memory_leave(struct memory *m)
{
	struct memory **p = &all;

	while (*p != m)
		p = &(*p)->next;
	*p = m->next;
}

struct memory *memory_first(void) { return all; }

void memory_release(struct memory *m)
{
	release_parts(m->parts, m->count);
	free(m->mappings);
	free(m->parts);
	free(m);
}

static void forget_unused(struct memory *m)
{
	if (m->references || m->mappings)
		return;
	memory_leave(m);
	memory_release(m);
}

struct memory *memory_new(size_t size, const struct properties *wanted)
{
	struct memory *m = calloc(1, sizeof *m);

	if (!m)
		return NULL;
	*m = (struct memory){.size = size, .part_size = PART, .count = (size + PART - 1) / PART, .wanted = *wanted};
	if (!(m->parts = calloc(m->count, sizeof *m->parts))) {
		free(m);
		return NULL;
	}
	return m;
}

bool memory_is_ours(size_t size, CUdevice device)
{
	size_t total = 0;

	return size >= LEAST && !driver.cuDeviceTotalMem_v2(&total, device) && size <= total;
}

/* A descriptor can be had of each part (keep.c), which the program does not see if it has not asked for it. */
static bool hides_type(const struct memory *m) { return !m->wanted.handle_types; }

struct properties memory_properties(const struct memory *m)
{
	struct properties its = m->wanted;

	if (hides_type(m))
		its.handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	return its;
}

CUresult memory_make_part(struct memory *m, size_t part)
{
	const struct properties its = memory_properties(m);

	return driver.cuMemCreate(&m->parts[part], memory_length(m, part), &its, 0);
}

CUresult memory_create(struct memory **out, size_t size, const struct properties *wanted)
{
	struct memory *m = memory_new(size, wanted);

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < m->count; i++) {
		CUresult r = memory_make_part(m, i);
		if (r) {
			m->count = i;
			memory_release(m);
			return r;
		}
	}
	*out = m;
	return CUDA_SUCCESS;
}

/* What may be exported has a record however small it is. */
static bool may_be_shared(size_t size, const struct properties *wanted)
{
	return wanted->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && size && !(size % STEP);
}

static bool can_be_ours(size_t size, const struct properties *wanted)
{
	return wanted->type == CU_MEM_ALLOCATION_TYPE_PINNED && wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       !wanted->flags.compression && !wanted->flags.usage &&
	       (memory_is_ours(size, wanted->location.id) || may_be_shared(size, wanted));
}

CUresult memory_hand_out(struct memory *m, CUhandle *handle)
{
	m->references = 1;
	ALONE;
	memory_enter(m);
	*handle = (CUhandle)(uintptr_t)m;
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUhandle *handle, size_t size, const struct properties *wanted, unsigned long long flags)
{
	struct memory *m;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (driver_forked() || !handle || !wanted || flags || !can_be_ours(size, wanted) || !memory_can_be_served())
		return driver.cuMemCreate(handle, size, wanted, flags);
	UNCANCELLED;
	CUresult r = memory_create(&m, size, wanted);
	return r ? r : memory_hand_out(m, handle);
}

CUresult cuMemRelease(CUhandle handle)
{
	BEGIN(driver.cuMemRelease(handle));
	struct memory *m = memory_of(handle);
	if (!m)
		return driver.cuMemRelease(handle);
	m->references--;
	forget_unused(m);
	return CUDA_SUCCESS;
}

CUresult memory_map(const struct memory *m, CUdeviceptr at)
{
	size_t done = 0;

	for (size_t i = 0; i < m->count; done += memory_length(m, i++)) {
		CUresult r = driver.cuMemMap(at + done, memory_length(m, i), 0, m->parts[i], 0);
		if (r) {
			if (done)
				driver.cuMemUnmap(at, done);
			return r;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUhandle handle, unsigned long long flags)
{
	BEGIN(driver.cuMemMap(at, size, offset, handle, flags));
	struct memory *m = memory_of(handle);
	if (!m)
		return driver.cuMemMap(at, size, offset, handle, flags);
	if (!size || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (offset || size != m->size)
		return CUDA_ERROR_NOT_SUPPORTED;
	struct mapping *p = malloc(sizeof *p);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = memory_map(m, at);
	if (r) {
		free(p);
		return r;
	}
	*p = (struct mapping){m->mappings, at};
	m->mappings = p;
	return CUDA_SUCCESS;
}

/* Is there ordinary memory, of which a program must not know that it is mapped? */
static bool ordinary_in(CUdeviceptr at, size_t size)
{
	for (struct memory *m = all; m; m = m->next)
		if (m->companion && (m->mappings->at - at < size || at - m->mappings->at < m->size))
			return true;
	return false;
}

/* Would only a part of a mapping be left? The driver unmaps none by halves, and sees parts. */
static bool divides(CUdeviceptr at, size_t size)
{
	for (struct memory *m = all; m; m = m->next)
		for (struct mapping *p = m->mappings; p; p = p->next)
			if (at < p->at + m->size && p->at < at + size && (p->at < at || at + size < p->at + m->size))
				return true;
	return false;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const struct access *who, size_t count)
{
	BEGIN(driver.cuMemSetAccess(at, size, who, count));
	return ordinary_in(at, size) ? CUDA_ERROR_INVALID_VALUE : driver.cuMemSetAccess(at, size, who, count);
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	BEGIN(driver.cuMemUnmap(at, size));
	if (ordinary_in(at, size) || divides(at, size))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = driver.cuMemUnmap(at, size);
	if (r)
		return r;
	for (struct memory *m = all, *next; m; m = next) {
		next = m->next;
		for (struct mapping **p = &m->mappings; *p;) {
			struct mapping *gone = *p;
			if (gone->at - at >= size) {
				p = &gone->next;
				continue;
			}
			*p = gone->next;
			free(gone);
		}
		forget_unused(m);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *at)
{
	CUdeviceptr begin;

	BEGIN(driver.cuMemRetainAllocationHandle(handle, at));
	struct memory *m = handle ? memory_at((CUdeviceptr)(uintptr_t)at, &begin) : NULL;
	if (!m)
		return driver.cuMemRetainAllocationHandle(handle, at);
	if (m->companion)
		return CUDA_ERROR_INVALID_VALUE;
	m->references++;
	*handle = (CUhandle)(uintptr_t)m;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(struct properties *its, CUhandle handle)
{
	BEGIN(driver.cuMemGetAllocationPropertiesFromHandle(its, handle));
	struct memory *m = memory_of(handle);
	CUresult r = driver.cuMemGetAllocationPropertiesFromHandle(its, m ? m->parts[0] : handle);
	if (!r && m)
		its->handle_types = m->wanted.handle_types;
	return r;
}

/* Waits for the work of all GPUs: memory is moved under it. */
static CUresult synchronize(void)
{
	int n = 0, active;
	unsigned flags;
	CUcontext context;
	CUresult r = driver.cuCtxSynchronize();

	if (!r)
		r = driver.cuDeviceGetCount(&n);
	for (CUdevice d = 0; d < n && !r; d++) {
		if (driver.cuDevicePrimaryCtxGetState(d, &flags, &active) || !active || driver.cuDevicePrimaryCtxRetain(&context, d))
			continue;
		if (!(r = driver.cuCtxPushCurrent_v2(context))) {
			r = driver.cuCtxSynchronize();
			driver.cuCtxPopCurrent_v2(&context);
		}
		driver.cuDevicePrimaryCtxRelease_v2(d);
	}
	return r;
}

/* Copies the parts, which are mapped at FROM, into the whole one. */
static CUresult copy(const struct memory *m, CUdeviceptr from, CUhandle whole)
{
	struct access own = {m->wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at;
	CUresult r = driver.cuMemAddressReserve(&at, m->size, 0, 0, 0);

	if (r)
		return r;
	if (!(r = driver.cuMemMap(at, m->size, 0, whole, 0))) {
		if (!(r = driver.cuMemSetAccess(at, m->size, &own, 1)) && !(r = driver.cuMemcpyDtoD_v2(at, from, m->size)))
			r = driver.cuCtxSynchronize();
		driver.cuMemUnmap(at, m->size);
	}
	driver.cuMemAddressFree(at, m->size);
	return r;
}

/* Puts the whole one in the place of the parts, for those GPUs that have access to these. */
static CUresult replace(CUdeviceptr at, size_t size, CUhandle whole)
{
	struct access who[64];
	size_t count = 0;
	int n = 0;
	CUresult r = driver.cuDeviceGetCount(&n);

	for (int d = 0; d < n && d < 64 && !r; d++) {
		unsigned long long flags = 0;
		who[count] = (struct access){{CU_MEM_LOCATION_TYPE_DEVICE, d}, 0};
		r = driver.cuMemGetAccess(&flags, &who[count].location, at);
		who[count].flags = (int)flags;
		count += flags != 0;
	}
	if (!r)
		r = driver.cuMemUnmap(at, size);
	if (!r)
		r = driver.cuMemMap(at, size, 0, whole, 0);
	if (!r && count)
		r = driver.cuMemSetAccess(at, size, who, count);
	return r;
}

/*
 * Makes memory whole, for a call that takes one allocation. From then on a dump is refused if
 * another GPU can reach it, as without the guest. If there is no room for both, the call fails.
 */
static CUresult make_whole(struct memory *m)
{
	CUhandle whole;
	CUcontext context = NULL;
	CUresult r;

	if (m->count == 1) {
		m->tied = true;
		return CUDA_SUCCESS;
	}
	if (m->number)
		return CUDA_ERROR_NOT_SUPPORTED; /* others have the parts */
	if (m->mappings && (driver.cuCtxGetCurrent(&context) || !context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if ((r = driver.cuMemCreate(&whole, m->size, &m->wanted, 0)))
		return r;
	if (m->mappings && !(r = synchronize()))
		r = copy(m, m->mappings->at, whole);
	for (struct mapping *p = m->mappings; p && !r; p = p->next)
		r = replace(p->at, m->size, whole);
	if (r) {
		driver.cuMemRelease(whole);
		return r;
	}
	release_parts(m->parts, m->count);
	m->parts[0] = whole;
	m->count = 1;
	m->part_size = m->size;
	m->tied = true;
	return CUDA_SUCCESS;
}

/* The driver's handle for a call that takes one allocation. */
static CUresult whole_of(CUhandle *handle)
{
	struct memory *m = memory_of(*handle);
	CUresult r = m ? make_whole(m) : CUDA_SUCCESS;

	if (m && !r)
		*handle = m->parts[0];
	return r;
}

CUresult cuMemExportToShareableHandle(void *out, CUhandle handle, int type, unsigned long long flags)
{
	BEGIN(driver.cuMemExportToShareableHandle(out, handle, type, flags));
	struct memory *m = memory_of(handle);
	if (m && (hides_type(m) || m->opened))
		return CUDA_ERROR_INVALID_VALUE;
	if (m && out && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags && m->wanted.handle_types & type && !m->tied && (*(int *)out = ipc_export(m)) >= 0)
		return CUDA_SUCCESS;
	CUresult r = whole_of(&handle);
	return r ? r : driver.cuMemExportToShareableHandle(out, handle, type, flags);
}

static CUresult map_array(CUresult (*call)(struct array_mapping *, unsigned, void *), struct array_mapping *list, unsigned count, void *stream)
{
	struct array_mapping *copies;
	CUresult r = CUDA_SUCCESS;

	if (driver_forked() || !list || !count || !(copies = calloc(count, sizeof *copies)))
		return call(list, count, stream);
	memcpy(copies, list, count * sizeof *copies);
	ALONE;
	for (unsigned i = 0; i < count && !r; i++)
		r = whole_of(&copies[i].handle);
	if (!r)
		r = call(copies, count, stream);
	free(copies);
	return r;
}

CUresult cuMemMapArrayAsync(struct array_mapping *list, unsigned count, void *stream)
{
	return driver_known() ? map_array(driver.cuMemMapArrayAsync, list, count, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemMapArrayAsync_ptsz(struct array_mapping *list, unsigned count, void *stream)
{
	return driver_known() ? map_array(driver.cuMemMapArrayAsync_ptsz, list, count, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMulticastBindMem(CUhandle group, size_t group_offset, CUhandle handle, size_t offset, size_t size, unsigned long long flags)
{
	BEGIN(driver.cuMulticastBindMem(group, group_offset, handle, offset, size, flags));
	CUresult r = whole_of(&handle);
	return r ? r : driver.cuMulticastBindMem(group, group_offset, handle, offset, size, flags);
}

CUresult cuMulticastBindAddr(CUhandle group, size_t group_offset, CUdeviceptr at, size_t size, unsigned long long flags)
{
	CUdeviceptr begin;

	BEGIN(driver.cuMulticastBindAddr(group, group_offset, at, size, flags));
	struct memory *m = memory_at(at, &begin);
	CUresult r = !m ? CUDA_SUCCESS : m->companion ? CUDA_ERROR_INVALID_VALUE : make_whole(m);
	return r ? r : driver.cuMulticastBindAddr(group, group_offset, at, size, flags);
}

/* What a program is told of memory: not the bounds of a part. */
struct bounds {
	CUdeviceptr base, companion;
	size_t size, mapped;
	bool opened, hides_type;
};

static bool bounds_at(CUdeviceptr at, struct bounds *its)
{
	if (!__atomic_load_n(&all, __ATOMIC_RELAXED) || driver_forked())
		return false;
	ALONE;
	struct memory *m = memory_at(at, &its->base);
	if (!m || (m->count == 1 && !m->companion && !hides_type(m)))
		return false;
	its->size = m->companion ? m->asked : m->size;
	its->mapped = m->size;
	its->companion = m->companion;
	its->opened = m->opened;
	its->hides_type = hides_type(m);
	return true;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
	struct bounds its;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuMemGetAddressRange_v2(base, size, at);
	if (!r && bounds_at(at, &its)) {
		if (base)
			*base = its.base;
		if (size)
			*size = its.size;
	}
	return r;
}

/* The identity of the memory is that of its first part. What ordinary memory has otherwise is the companion's. */
static void adjust(void *out, int attribute, const struct bounds *its)
{
	switch (attribute) {
	case BUFFER_ID:
	case MEMORY_BLOCK_ID: driver.cuPointerGetAttribute(out, attribute, its->base); break;
	case MAPPING_BASE_ADDR: *(CUdeviceptr *)out = its->base; break;
	case MAPPING_SIZE: *(size_t *)out = its->mapped; break;
	case ALLOWED_HANDLE_TYPES:
		if (its->hides_type)
			*(int *)out &= ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		break;
	}
	if (!its->companion)
		return;
	switch (attribute) {
	case RANGE_START_ADDR: *(CUdeviceptr *)out = its->base; break;
	case RANGE_SIZE: *(size_t *)out = its->size; break;
	case IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)out = !its->opened; break;
	case CONTEXT:
	case SYNC_MEMOPS:
	case DEVICE_ORDINAL:
	case ALLOWED_HANDLE_TYPES: driver.cuPointerGetAttribute(out, attribute, its->companion); break;
	}
}

CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr at)
{
	struct bounds its;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuPointerGetAttribute(out, attribute, at);
	if (!r && bounds_at(at, &its))
		adjust(out, attribute, &its);
	return r;
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **out, CUdeviceptr at)
{
	struct bounds its;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuPointerGetAttributes(count, attributes, out, at);
	if (!r && bounds_at(at, &its))
		for (unsigned i = 0; i < count; i++)
			adjust(out[i], attributes[i], &its);
	return r;
}
