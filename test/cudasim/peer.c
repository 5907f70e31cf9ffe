/* peer.c: which GPU of the process may access which memory. */
#include "peer.h"

#include "context.h"
#include "held.h"

/* peers[i] has bit j when the contexts of device i may access what cuMemAlloc gave on device j. */
static _Atomic uint32_t peers[SIM_MAX_GPUS];

int location_device(CUmemLocation location)
{
	if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_of(location.id))
		return -1;
	return sim.visible[location.id];
}

static bool reaches(const struct allocation *a, int device)
{
	if (a->pool)
		return pool_reaches(a->pool, device);
	if (!a->context)
		return a->access >> device & 1;
	return a->device == device || atomic_load(&peers[device]) >> a->device & 1;
}

CUresult memory_reach(CUcontext c, CUdeviceptr p, uint64_t n, bool kernel)
{
	int device = context_device(c);
	for (CUdeviceptr at = p; at < p + n;) {
		struct allocation *a = memory_find(at);
		if (!a || (a->kind != MEMORY_DEVICE && a->kind != MEMORY_HOST_NUMA))
			return CUDA_SUCCESS; /* the host's, or nothing's: not a matter of peers */
		if (a->pool && pool_lost(a->pool, device))
			return CUDA_ERROR_LAUNCH_FAILED;
		/* A copy that is not allowed is made by way of the host. */
		if (kernel && !reaches(a, device))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		at = a->va + a->size;
	}
	return CUDA_SUCCESS;
}

uint32_t peers_of(const struct allocation *a)
{
	uint32_t others = 0;
	for (int i = 0; i < sim.ndevices; i++)
		if (i != a->device && sim.device[i].contexts && reaches(a, i))
			others |= 1u << i;
	return others;
}

struct pairs {
	uint32_t with[SIM_MAX_GPUS];
};

static CUresult pair_of(struct allocation *a, void *pairs)
{
	if (a->kind == MEMORY_DEVICE)
		((struct pairs *)pairs)->with[a->device] |= peers_of(a);
	return CUDA_SUCCESS;
}

uint32_t peers_pairs(void)
{
	struct pairs pairs = {0};
	uint32_t n = 0;
	memory_each(pair_of, &pairs);
	for (int i = 0; i < sim.ndevices; i++)
		for (int j = 0; j < i; j++) {
			uint32_t from = atomic_load(&peers[i]) | pairs.with[i], to = atomic_load(&peers[j]) | pairs.with[j];
			n += (from >> j | to >> i) & 1;
		}
	return n;
}

static CUresult restorable(struct allocation *a, void *unused)
{
	(void)unused;
	if (a->kind == MEMORY_HOST_NUMA)
		return CUDA_ERROR_UNKNOWN;
	if (a->kind == MEMORY_IMPORTED)
		return a->context ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
	if (a->kind != MEMORY_DEVICE || a->pool || a->size < sim.host.peer_limit)
		return CUDA_SUCCESS;
	return peers_of(a) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult without_fabric(struct allocation *a, void *unused)
{
	(void)unused;
	a->fabric = false;
	return CUDA_SUCCESS;
}

CUresult peers_restorable(void) { return memory_each(restorable, NULL); }

void peers_restored(void)
{
	memory_each(without_fabric, NULL);
	pools_restored();
	held_note();
}

EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice ordinal, CUdevice peer)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_of(ordinal) || !sim_device_of(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = ordinal != peer;
	return CUDA_SUCCESS;
}

/* Was it restored? Then the fabric object by which another GPU would reach it is missing. */
static CUresult reachable_anew(struct allocation *a, void *device)
{
	bool its = a->kind == MEMORY_DEVICE && a->context && !a->pool && a->device == *(int *)device;
	return its && a->size >= sim.host.peer_limit && !a->fabric ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult set_peer(CUcontext peer, bool on)
{
	CUcontext c;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	int from = context_device(c), to = peer ? context_device(peer) : from;
	bool is = atomic_load(&peers[from]) >> to & 1;
	if (from == to)
		r = CUDA_ERROR_INVALID_DEVICE;
	else if (is == on)
		r = on ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	else if (on)
		r = memory_each(reachable_anew, &to);
	if (!r)
		atomic_fetch_xor(&peers[from], 1u << to);
	held_note();
	gate_leave();
	return r;
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : set_peer(peer, true);
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) { return set_peer(peer, false); }
