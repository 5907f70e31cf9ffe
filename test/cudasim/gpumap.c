/* gpumap.c: the driver's rules for gpuPairs. */
#include "gpumap.h"

#include <string.h>

static int index_of(const CUuuid *set, int n, const CUuuid *u)
{
	for (int i = 0; i < n; i++)
		if (!memcmp(&set[i], u, sizeof *u))
			return i;
	return -1;
}

CUresult gpumap_resolve(const CUuuid *captured, int ncaptured, const struct sim_host *h, uint32_t visible,
			const CUcheckpointGpuPair *pair, uint32_t npairs, int *target)
{
	if (__builtin_popcount(visible) < ncaptured)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!npairs) {
		int gpu = 0;
		for (int i = 0; i < ncaptured; i++, gpu++) {
			while (!(visible & 1u << gpu))
				gpu++;
			target[i] = gpu;
		}
		return CUDA_SUCCESS;
	}
	if (npairs != (uint32_t)ncaptured)
		return CUDA_ERROR_INVALID_VALUE;
	uint32_t old_seen = 0, new_seen = 0;
	for (uint32_t i = 0; i < npairs; i++) {
		int from = index_of(captured, ncaptured, &pair[i].oldUuid);
		int to = host_find(h, &pair[i].newUuid);
		if (from < 0 || to < 0 || !(visible & 1u << to) || old_seen & 1u << from || new_seen & 1u << to)
			return CUDA_ERROR_INVALID_VALUE;
		old_seen |= 1u << from;
		new_seen |= 1u << to;
		target[from] = to;
	}
	return CUDA_SUCCESS;
}
