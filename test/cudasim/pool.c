/* pool.c: memory pools. Each allocation of a pool is one of its own here. */
#include <pthread.h>
#include <stdlib.h>

#include "context.h"
#include "held.h"
#include "peer.h"
#include "stream.h"

struct sim_pool {
	struct sim_pool *next;
	int device;
	uint32_t access;  /* other devices that cuMemPoolSetAccess has let in, as bits */
	uint32_t lost;	  /* those that were let in before a restore, which forgets it without a word */
	bool fabric;	  /* never restored */
	bool shared_once; /* before a restore */
};

/* Changed only inside the gate and under the mutex. */
static struct sim_pool *pools;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static bool alive(CUmempool pool)
{
	pthread_mutex_lock(&mutex);
	struct sim_pool *p = pools;
	while (p && p != pool)
		p = p->next;
	pthread_mutex_unlock(&mutex);
	return p != NULL;
}

bool pool_reaches(CUmempool pool, int device) { return pool->device == device || pool->access >> device & 1; }
bool pool_lost(CUmempool pool, int device) { return pool->lost >> device & 1; }

void pools_restored(void)
{
	for (struct sim_pool *p = pools; p; p = p->next) {
		p->lost |= p->access;
		p->access = 0;
		p->fabric = false;
	}
}

uint32_t pools_shared(void)
{
	uint32_t n = 0;
	pthread_mutex_lock(&mutex);
	for (struct sim_pool *p = pools; p; p = p->next)
		n += p->access != 0;
	pthread_mutex_unlock(&mutex);
	return n;
}

EXPORT CUresult cuMemPoolCreate(CUmempool *out, const CUmemPoolProps *props)
{
	if (!out || !props || props->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = gate_enter();
	if (r)
		return r;
	int device = location_device(props->location);
	struct sim_pool *p = device < 0 ? NULL : calloc(1, sizeof *p);
	if (p) {
		p->device = device;
		p->fabric = true;
		pthread_mutex_lock(&mutex);
		p->next = pools;
		pools = p;
		pthread_mutex_unlock(&mutex);
		*out = p;
	} else {
		r = device < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
	}
	gate_leave();
	return r;
}

/* Its allocations stay as they are. */
EXPORT CUresult cuMemPoolDestroy(CUmempool pool)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!alive(pool))
		r = CUDA_ERROR_INVALID_VALUE;
	gate_leave();
	return r;
}

EXPORT CUresult cuMemPoolSetAccess(CUmempool pool, const CUmemAccessDesc *access, size_t n)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!alive(pool) || (n && !access))
		r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n && !r; i++) {
		int device = location_device(access[i].location);
		if (device < 0 || (device == pool->device && !access[i].flags)) {
			r = CUDA_ERROR_INVALID_VALUE;
		} else if (device != pool->device && access[i].flags) {
			if (!pool->fabric && pool->shared_once)
				r = CUDA_ERROR_INVALID_VALUE;
			else
				pool->access |= 1u << device;
			pool->shared_once = true;
		} else if (device != pool->device) {
			pool->access &= ~(1u << device);
		}
	}
	held_note();
	gate_leave();
	return r;
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t n, CUmempool pool, CUstream stream)
{
	CUcontext c;
	if (!out || !n)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	if (!alive(pool) || !stream_valid(stream)) {
		r = alive(pool) ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	} else {
		struct allocation *a = memory_new(MEMORY_DEVICE, pool->device, c, n);
		if (a) {
			a->pool = pool;
			held_note();
			*out = a->va;
		} else {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	gate_leave();
	return r;
}

CUresult cuMemFree_v2(CUdeviceptr p);

EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream)
{
	return stream_valid(stream) ? cuMemFree_v2(p) : CUDA_ERROR_INVALID_HANDLE;
}
