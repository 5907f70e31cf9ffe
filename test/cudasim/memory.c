/* memory.c: device, managed and pinned memory, and staging it for a checkpoint. */
#define _GNU_SOURCE
#include "held.h"
#include "imports.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "context.h"
#include "stream.h"

#define PAGE 4096ull
#define GUARD 65536ull /* whole pages on every kernel */
#define VA_STEP (2ull << 20)
#define CHUNK (1u << 16)

/*
 * Changed only inside the gate and under the mutex; the restore thread reads
 * the list without it, when nobody is inside the gate.
 */
static struct allocation *allocations;
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr next_va = SIM_VA_BASE;

CUresult device_account(int device, int64_t delta)
{
	static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
	struct sim_device *d = &sim.device[device];
	if (d->gpu < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&m);
	CUresult r = account_add(&sim.host, d->gpu, sim.name, sim.name, delta);
	if (!r)
		d->bytes += (uint64_t)delta;
	pthread_mutex_unlock(&m);
	return r;
}

struct allocation *memory_find(CUdeviceptr p)
{
	pthread_mutex_lock(&list_mutex);
	struct allocation *a = allocations;
	while (a && !(a->va && p >= a->va && p - a->va < a->size))
		a = a->next;
	pthread_mutex_unlock(&list_mutex);
	return a;
}

static void *host_pages(uint64_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

struct allocation *memory_new(enum memory_kind kind, int device, CUcontext context, uint64_t size)
{
	struct allocation *a = calloc(1, sizeof *a);
	if (!a)
		return NULL;
	a->kind = kind;
	a->device = device;
	a->context = context;
	a->asked = size;
	a->size = (size + PAGE - 1) / PAGE * PAGE;
	bool host = kind == MEMORY_MANAGED || kind == MEMORY_PINNED;
	bool accounted = kind == MEMORY_MANAGED || kind == MEMORY_DEVICE;
	if (host && !(a->va = (CUdeviceptr)(uintptr_t)host_pages(a->size))) {
		free(a);
		return NULL;
	}
	if (accounted && device_account(device, (int64_t)a->size)) {
		if (host)
			munmap((void *)(uintptr_t)a->va, a->size);
		free(a);
		return NULL;
	}
	pthread_mutex_lock(&list_mutex);
	if (!host) {
		a->va = next_va;
		next_va += (a->size + VA_STEP - 1) / VA_STEP * VA_STEP;
		a->offset = a->va - SIM_VA_BASE;
	}
	a->fabric = kind == MEMORY_DEVICE && a->size >= sim.host.peer_limit;
	a->next = allocations;
	allocations = a;
	pthread_mutex_unlock(&list_mutex);
	held_note();
	return a;
}

CUdeviceptr memory_reserve(uint64_t size)
{
	pthread_mutex_lock(&list_mutex);
	CUdeviceptr va = next_va;
	next_va += (size + VA_STEP - 1) / VA_STEP * VA_STEP;
	pthread_mutex_unlock(&list_mutex);
	return va;
}

CUresult memory_each(CUresult (*f)(struct allocation *a, void *arg), void *arg)
{
	CUresult r = CUDA_SUCCESS;
	pthread_mutex_lock(&list_mutex);
	for (struct allocation *a = allocations; a && !r; a = a->next)
		r = f(a, arg);
	pthread_mutex_unlock(&list_mutex);
	return r;
}

static void memory_file(char *path, const struct sim_process *p, const struct allocation *a)
{
	if (a->kind == MEMORY_IMPORTED)
		host_path(&p->host, path, "gpu/%d/%s.mem", a->exporter_gpu, a->exporter);
	else
		host_path(&p->host, path, "gpu/%d/%s.mem", p->device[a->device].gpu, p->name);
}

static void export_file(char *path, const char *exported, int gpu) { host_path(&sim.host, path, "gpu/%d/%s.mem", gpu, exported); }

bool memory_outlives(const char *exported, int gpu)
{
	char path[SIM_FULLPATH];
	export_file(path, exported, gpu);
	return !access(path, F_OK);
}

static CUresult file_read(int fd, uint64_t offset, unsigned char *buf, uint64_t n);
static CUresult file_write(int fd, uint64_t offset, const unsigned char *buf, uint64_t n);

/* Its content outlives it: who has a descriptor has the memory. */
static void export_content(const struct allocation *a, int from)
{
	char path[SIM_FULLPATH];
	unsigned char *buf = host_pages(a->size);
	export_file(path, a->exported, sim.device[a->device].gpu);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (!buf || fd < 0 || file_read(from, a->offset, buf, a->size) || file_write(fd, a->offset, buf, a->size))
		sim_log("%s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	if (buf)
		munmap(buf, a->size);
}

/* The content is gone already when a whole context ends with its process's file. */
static void memory_release(struct allocation *a)
{
	if (a->kind == MEMORY_IMPORTED)
		import_forget(a);
	if (a->held > 0)
		close(a->held);
	if (a->kind == MEMORY_MANAGED || a->kind == MEMORY_PINNED)
		munmap((void *)(uintptr_t)a->va, a->size);
	bool outlives = a->exported[0] && process_alive(&sim.host, a->exported, sim.name) >= 0;
	if (a->kind == MEMORY_DEVICE)
		import_orphan(a, sim.device[a->device].gpu);
	if (a->kind == MEMORY_DEVICE || a->kind == MEMORY_HOST_NUMA) {
		char path[SIM_FULLPATH];
		memory_file(path, &sim, a);
		int fd = open(path, O_RDWR | O_CLOEXEC | (outlives ? O_CREAT : 0), 0600);
		if (fd >= 0) {
			if (outlives)
				export_content(a, fd);
			fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)a->offset, (off_t)a->size);
			close(fd);
		}
	}
	if (a->kind == MEMORY_MANAGED || a->kind == MEMORY_DEVICE)
		device_account(a->device, -(int64_t)a->size);
	if (outlives)
		account_add(&sim.host, sim.device[a->device].gpu, sim.name, a->exported, (int64_t)a->size);
	free(a);
	held_note();
}

/* Takes the first allocation that fits out of the list. */
static struct allocation *memory_take(CUdeviceptr va, CUcontext context)
{
	pthread_mutex_lock(&list_mutex);
	struct allocation **at = &allocations;
	while (*at && !(context ? (*at)->context == context : (*at)->va == va))
		at = &(*at)->next;
	struct allocation *a = *at;
	if (a)
		*at = a->next;
	pthread_mutex_unlock(&list_mutex);
	return a;
}

void memory_remove_allocation(struct allocation *gone)
{
	pthread_mutex_lock(&list_mutex);
	struct allocation **at = &allocations;
	while (*at && *at != gone)
		at = &(*at)->next;
	if (*at)
		*at = gone->next;
	pthread_mutex_unlock(&list_mutex);
	memory_release(gone);
}

void memory_drop_context(CUcontext context)
{
	struct allocation *a;
	while ((a = memory_take(0, context)))
		memory_release(a);
}

CUresult region_open(struct region *r, CUdeviceptr p, uint64_t n)
{
	*r = (struct region){.fd = -1};
	struct allocation *a = memory_find(p);
	/* The handles of one reservation lie side by side in the file too. */
	for (struct allocation *last = a; last && n > last->va + last->size - p;) {
		struct allocation *next = last->context ? NULL : memory_find(last->va + last->size);
		last = next && next->kind == a->kind && next->device == a->device && next->offset == last->offset + last->size ? next : NULL;
		if (!last)
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!a)
		return CUDA_ERROR_INVALID_VALUE;
	if (a->kind == MEMORY_MANAGED || a->kind == MEMORY_PINNED) {
		r->host = (unsigned char *)(uintptr_t)p;
		return CUDA_SUCCESS;
	}
	char path[SIM_FULLPATH];
	memory_file(path, &sim, a);
	bool orphan = a->kind == MEMORY_IMPORTED && import_is_orphan(a);
	if (orphan)
		host_path(&sim.host, path, "gpu/%d/%s.orphan", a->exporter_gpu, sim.name);
	r->fd = open(path, O_RDWR | O_CLOEXEC | (a->kind == MEMORY_IMPORTED && !orphan ? 0 : O_CREAT), 0600);
	r->offset = a->offset + (p - a->va);
	if (r->fd < 0) {
		sim_log("device memory %s: %s", path, strerror(errno));
		return CUDA_ERROR_UNKNOWN;
	}
	return CUDA_SUCCESS;
}

void region_close(struct region *r)
{
	if (r->fd >= 0)
		close(r->fd);
}

static CUresult file_read(int fd, uint64_t offset, unsigned char *buf, uint64_t n)
{
	while (n) {
		ssize_t got = pread(fd, buf, n < (64u << 20) ? n : 64u << 20, (off_t)offset);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return errno == EFAULT ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNKNOWN;
		if (got == 0) { /* beyond what was ever written */
			memset(buf, 0, n);
			break;
		}
		buf += got;
		offset += (uint64_t)got;
		n -= (uint64_t)got;
	}
	return CUDA_SUCCESS;
}

static CUresult file_write(int fd, uint64_t offset, const unsigned char *buf, uint64_t n)
{
	while (n) {
		ssize_t put = pwrite(fd, buf, n < (64u << 20) ? n : 64u << 20, (off_t)offset);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0) {
			if (errno == EFAULT)
				return CUDA_ERROR_INVALID_VALUE;
			sim_log("writing device memory: %s", strerror(errno));
			return CUDA_ERROR_UNKNOWN;
		}
		buf += put;
		offset += (uint64_t)put;
		n -= (uint64_t)put;
	}
	return CUDA_SUCCESS;
}

CUresult region_read(const struct region *r, uint64_t at, void *buf, uint64_t n)
{
	if (r->fd >= 0)
		return file_read(r->fd, r->offset + at, buf, n);
	memcpy(buf, r->host + at, n);
	return CUDA_SUCCESS;
}

CUresult region_write(const struct region *r, uint64_t at, const void *buf, uint64_t n)
{
	if (r->fd >= 0)
		return file_write(r->fd, r->offset + at, buf, n);
	memcpy(r->host + at, buf, n);
	return CUDA_SUCCESS;
}

/* ---- staging ---- */

bool memory_has_managed(void)
{
	for (struct allocation *a = allocations; a; a = a->next)
		if (a->kind == MEMORY_MANAGED)
			return true;
	return false;
}

CUresult memory_stage(struct staging *s)
{
	*s = (struct staging){0};
	for (struct allocation *a = allocations; a; a = a->next)
		if (a->kind == MEMORY_DEVICE) {
			a->staged = s->size;
			s->size += a->size;
		}
	if (!s->size)
		return CUDA_SUCCESS;
	s->size = (s->size + GUARD - 1) / GUARD * GUARD;
	/* Guards keep the kernel from merging it with a neighbour: it must show as new in maps. */
	unsigned char *all = mmap(NULL, s->size + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->base = all + GUARD;
	/* Populated by the kernel before the first byte is copied, as the real driver has it (580: flags 0x8022). */
	if (mmap(s->base, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		staging_free(s);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult r = CUDA_SUCCESS;
	for (struct allocation *a = allocations; a && !r; a = a->next) {
		char path[SIM_FULLPATH];
		if (a->kind != MEMORY_DEVICE)
			continue;
		memory_file(path, &sim, a);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT)
			continue; /* allocated and never written */
		r = fd < 0 ? CUDA_ERROR_UNKNOWN : file_read(fd, a->offset, s->base + a->staged, a->size);
		if (r)
			sim_log("checkpoint: reading %s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
	if (r)
		staging_free(s);
	return r;
}

CUresult memory_unstage(const struct staging *s, const struct sim_process *p)
{
	CUresult r = CUDA_SUCCESS;
	for (struct allocation *a = allocations; a && !r; a = a->next) {
		char path[SIM_FULLPATH];
		if (a->kind != MEMORY_DEVICE)
			continue;
		memory_file(path, p, a);
		int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0) {
			sim_log("restore: %s: %s", path, strerror(errno));
			return CUDA_ERROR_UNKNOWN;
		}
		r = file_write(fd, a->offset, s->base + a->staged, a->size);
		close(fd);
	}
	return r;
}

void staging_free(struct staging *s)
{
	if (s->base)
		munmap(s->base - GUARD, s->size + 2 * GUARD);
	*s = (struct staging){0};
}

/* ---- entry points ---- */

static CUresult allocate(enum memory_kind kind, CUdeviceptr *p, size_t n)
{
	if (!p || !n)
		return CUDA_ERROR_INVALID_VALUE;
	CUcontext context;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	struct allocation *a = memory_new(kind, context_device(context), context, n);
	if (a)
		*p = a->va;
	gate_leave();
	return a ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { return allocate(MEMORY_DEVICE, p, n); }
ALIAS(cuMemAlloc_v2) CUresult cuMemAlloc(CUdeviceptr *p, size_t n);

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	if (flags != 1 && flags != 2)
		return CUDA_ERROR_INVALID_VALUE;
	return allocate(MEMORY_MANAGED, p, n);
}

EXPORT CUresult cuMemAllocHost_v2(void **p, size_t n)
{
	CUdeviceptr va;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = allocate(MEMORY_PINNED, &va, n);
	if (!r)
		*p = (void *)(uintptr_t)va;
	return r;
}
ALIAS(cuMemAllocHost_v2) CUresult cuMemAllocHost(void **p, size_t n);
EXPORT CUresult cuMemHostAlloc(void **p, size_t n, unsigned flags)
{
	(void)flags;
	return cuMemAllocHost_v2(p, n);
}

pthread_mutex_t importing = PTHREAD_MUTEX_INITIALIZER;

static CUresult release(CUdeviceptr p, bool pinned, bool imported)
{
	CUcontext context;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	if (imported)
		pthread_mutex_lock(&importing);
	struct allocation *a = memory_find(p);
	if (!a || a->va != p || !a->context || (a->kind == MEMORY_PINNED) != pinned || (a->kind == MEMORY_IMPORTED) != imported)
		r = CUDA_ERROR_INVALID_VALUE;
	else if (a->again)
		a->again--;
	else if ((a = memory_take(p, NULL)))
		memory_release(a);
	if (imported)
		pthread_mutex_unlock(&importing);
	gate_leave();
	return r;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p) { return p ? release(p, false, false) : CUDA_SUCCESS; }
ALIAS(cuMemFree_v2) CUresult cuMemFree(CUdeviceptr p);
/* What the host can do is all that is simulated of it. */
EXPORT CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	CUcontext context;
	(void)flags;
	if (!p || !n)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&context);
	if (!r)
		gate_leave();
	return r;
}
ALIAS(cuMemHostRegister_v2) CUresult cuMemHostRegister(void *p, size_t n, unsigned flags);
EXPORT CUresult cuMemHostUnregister(void *p) { return cuMemHostRegister_v2(p, 1, 0); }

EXPORT CUresult cuMemFreeHost(void *p) { return release((CUdeviceptr)(uintptr_t)p, true, false); }
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p) { return release(p, false, true); }

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	CUcontext context;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	int gpu = sim.device[context_device(context)].gpu;
	uint64_t used;
	if (gpu < 0 || account_list(&sim.host, gpu, sim.name, &used, NULL, 0) < 0) {
		r = CUDA_ERROR_UNKNOWN;
	} else {
		if (total)
			*total = sim.host.gpu[gpu].bytes;
		if (free_bytes)
			*free_bytes = sim.host.gpu[gpu].bytes - used;
	}
	gate_leave();
	return r;
}
ALIAS(cuMemGetInfo_v2) CUresult cuMemGetInfo(size_t *free_bytes, size_t *total);

/* One side of a copy: a device pointer or a host address. */
struct side {
	CUdeviceptr device;
	unsigned char *host;
};

static CUresult copy_now(struct side to, struct side from, size_t n)
{
	struct region in, out;
	CUresult r;
	if (from.host && to.device) {
		r = region_open(&out, to.device, n);
		if (!r) {
			r = region_write(&out, 0, from.host, n);
			region_close(&out);
		}
		return r;
	}
	r = region_open(&in, from.device, n);
	if (r)
		return r;
	if (to.host) {
		r = region_read(&in, 0, to.host, n);
	} else if (!(r = region_open(&out, to.device, n))) {
		unsigned char *buf = malloc(CHUNK);
		for (size_t at = 0; buf && at < n && !r; at += CHUNK) {
			size_t part = n - at < CHUNK ? n - at : CHUNK;
			r = region_read(&in, at, buf, part);
			if (!r)
				r = region_write(&out, at, buf, part);
		}
		if (!buf)
			r = CUDA_ERROR_OUT_OF_MEMORY;
		free(buf);
		region_close(&out);
	}
	region_close(&in);
	return r;
}

static CUresult copy(struct side to, struct side from, size_t n, bool wait)
{
	CUcontext context;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	if (wait)
		streams_drain();
	if (n && to.device)
		r = memory_reach(context, to.device, n, false);
	if (n && !r && from.device)
		r = memory_reach(context, from.device, n, false);
	if (n && !r)
		r = copy_now(to, from, n);
	gate_leave();
	return r;
}

static CUresult copy_async(struct side to, struct side from, size_t n, CUstream s)
{
	return stream_valid(s) ? copy(to, from, n, false) : CUDA_ERROR_INVALID_HANDLE;
}

#define DEV(p) ((struct side){.device = (p)})
#define HOST(p) ((struct side){.host = (unsigned char *)(uintptr_t)(p)})

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { return copy(DEV(to), HOST(from), n, true); }
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { return copy(HOST(to), DEV(from), n, true); }
EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(DEV(to), DEV(from), n, true); }
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s)
{
	return copy_async(DEV(to), HOST(from), n, s);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s)
{
	return copy_async(HOST(to), DEV(from), n, s);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s)
{
	return copy_async(DEV(to), DEV(from), n, s);
}
ALIAS(cuMemcpyHtoD_v2) CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n);
ALIAS(cuMemcpyDtoH_v2) CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n);
ALIAS(cuMemcpyDtoD_v2) CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n);
ALIAS(cuMemcpyHtoDAsync_v2) CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s);
ALIAS(cuMemcpyDtoHAsync_v2) CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s);
ALIAS(cuMemcpyDtoDAsync_v2) CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s);

static CUresult fill(CUdeviceptr p, const void *unit, size_t width, size_t count, CUstream s)
{
	if (!stream_valid(s))
		return CUDA_ERROR_INVALID_HANDLE;
	CUcontext context;
	struct region region;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	size_t n = width * count;
	unsigned char *buf = malloc(CHUNK);
	r = buf ? region_open(&region, p, n) : CUDA_ERROR_OUT_OF_MEMORY;
	if (!r) {
		for (size_t i = 0; i < CHUNK && i < n; i += width)
			memcpy(buf + i, unit, width);
		for (size_t at = 0; at < n && !r; at += CHUNK)
			r = region_write(&region, at, buf, n - at < CHUNK ? n - at : CHUNK);
		region_close(&region);
	}
	free(buf);
	gate_leave();
	return r;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr p, unsigned char v, size_t n) { return fill(p, &v, 1, n, NULL); }
EXPORT CUresult cuMemsetD32_v2(CUdeviceptr p, unsigned v, size_t n) { return fill(p, &v, 4, n, NULL); }
EXPORT CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) { return fill(p, &v, 1, n, s); }
EXPORT CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) { return fill(p, &v, 4, n, s); }
ALIAS(cuMemsetD8_v2) CUresult cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n);
ALIAS(cuMemsetD32_v2) CUresult cuMemsetD32(CUdeviceptr p, unsigned v, size_t n);
