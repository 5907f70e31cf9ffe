#include "memory.h"

#include <unistd.h>

#include "gpu.h"
#include "report.h"

#define GRANULE (2ull << 20) /* of every GPU's virtual memory management */

const char *const memory_names[MEMORY_KINDS] = {
	[MEMORY_ALLOC] = "alloc",
	[MEMORY_VMM] = "vmm",
	[MEMORY_VMM_FD] = "vmm-fd",
	[MEMORY_VMM_FD_CLOSED] = "vmm-fd-closed",
	[MEMORY_VMM_RDMA] = "vmm-rdma",
	[MEMORY_HOST_NUMA] = "host-numa",
	[MEMORY_POOL] = "pool",
	[MEMORY_POOL_FD] = "pool-fd",
};

static int pooled(const struct gpu *g)
{
	return g->memory.kind == MEMORY_POOL || g->memory.kind == MEMORY_POOL_FD;
}

static CUmemAccess access_of(const struct gpu *by, int allowed)
{
	return (CUmemAccess){
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, by->dev},
		.flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
	};
}

void memory_open(struct gpu *g)
{
	CUmempoolProps props = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = g->memory.kind == MEMORY_POOL_FD ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, g->dev},
	};

	if (!pooled(g))
		return;
	need(cu.MempoolCreate, "cuMemPoolCreate", "--memory pool");
	must(cu.MempoolCreate(&g->memory.pool, &props), "cuMemPoolCreate on GPU %d", g->ordinal);
}

void memory_close(struct gpu *g)
{
	if (pooled(g))
		must(cu.MempoolDestroy(g->memory.pool), "cuMemPoolDestroy on GPU %d", g->ordinal);
}

static void map_handle(struct gpu *g, CUdeviceptr at, uint64_t bytes)
{
	enum memory_kind kind = g->memory.kind;
	int exported = kind == MEMORY_VMM_FD || kind == MEMORY_VMM_FD_CLOSED;
	CUmemProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handle_types = exported ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, g->dev},
		.rdma = kind == MEMORY_VMM_RDMA,
	};
	CUmemHandle handle;
	int fd = -1;

	if (kind == MEMORY_HOST_NUMA)
		prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
	must(cu.MemCreate(&handle, bytes, &prop, 0), "cuMemCreate of %llu MiB on GPU %d",
	     (unsigned long long)bytes >> 20, g->ordinal);
	must(cu.MemMap(at, bytes, 0, handle, 0), "cuMemMap on GPU %d", g->ordinal);
	if (exported)
		must(cu.MemExport(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		     "cuMemExportToShareableHandle on GPU %d", g->ordinal);
	if (kind == MEMORY_VMM_FD_CLOSED)
		close(fd);
	/* The mapping keeps it. */
	must(cu.MemRelease(handle), "cuMemRelease on GPU %d", g->ordinal);
}

static void take_virtual(struct gpu *g, struct buffer *b, uint64_t bytes)
{
	CUmemAccess own = access_of(g, 1);
	uint64_t most = g->memory.handle_bytes;

	need(cu.MemCreate, "cuMemCreate", "--memory vmm");
	b->reserved = (bytes + GRANULE - 1) / GRANULE * GRANULE;
	if (!most)
		most = b->reserved;
	must(cu.MemAddressReserve(&b->ptr, b->reserved, 0, 0, 0), "cuMemAddressReserve");
	for (uint64_t at = 0; at < b->reserved; at += most)
		map_handle(g, b->ptr + at, b->reserved - at < most ? b->reserved - at : most);
	must(cu.MemSetAccess(b->ptr, b->reserved, &own, 1), "cuMemSetAccess on GPU %d", g->ordinal);
}

void memory_take(struct gpu *g, struct buffer *b)
{
	uint64_t bytes = b->nwords * sizeof(uint32_t);

	if (pooled(g)) {
		must(cu.MemAllocFromPool(&b->ptr, bytes, g->memory.pool, g->stream), "cuMemAllocFromPoolAsync of %llu MiB on GPU %d",
		     (unsigned long long)bytes >> 20, g->ordinal);
		gpu_wait(g);
		b->pooled = 1;
	} else if (g->memory.kind == MEMORY_ALLOC) {
		must(cu.MemAlloc(&b->ptr, bytes), "cuMemAlloc of %llu MiB on GPU %d", (unsigned long long)bytes >> 20, g->ordinal);
	} else {
		take_virtual(g, b, bytes);
	}
}

void memory_free(struct gpu *g, struct buffer *b)
{
	if (b->reserved) {
		must(cu.MemUnmap(b->ptr, b->reserved), "cuMemUnmap on GPU %d", g->ordinal);
		must(cu.MemAddressFree(b->ptr, b->reserved), "cuMemAddressFree");
	} else if (b->pooled) {
		must(cu.MemFreeAsync(b->ptr, g->stream), "cuMemFreeAsync on GPU %d", g->ordinal);
		gpu_wait(g);
	} else {
		must(cu.MemFree(b->ptr), "cuMemFree on GPU %d", g->ordinal);
	}
}

CUresult memory_allow(struct gpu *g, struct gpu *by, int allowed)
{
	CUmemAccess access = access_of(by, allowed);
	CUresult r = CUDA_SUCCESS;

	if (g->memory.kind == MEMORY_ALLOC) {
		need(cu.CtxEnablePeerAccess, "cuCtxEnablePeerAccess", "--peer");
		gpu_use(by);
		return allowed ? cu.CtxEnablePeerAccess(g->ctx, 0) : cu.CtxDisablePeerAccess(g->ctx);
	}
	gpu_use(g);
	if (pooled(g))
		return cu.MempoolSetAccess(g->memory.pool, &access, 1);
	for (int i = 0; i < g->nbuffers && !r; i++)
		if (g->buffers[i].reserved)
			r = cu.MemSetAccess(g->buffers[i].ptr, g->buffers[i].reserved, &access, 1);
	return r;
}
