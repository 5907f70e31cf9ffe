/* gpumap.h: the driver's rules for gpuPairs, as measured on 580. */
#ifndef CUDASIM_GPUMAP_H
#define CUDASIM_GPUMAP_H

#include "host.h"

/*
 * Where each of the captured GPUs goes: target[i] is the index, in the new
 * host, of the GPU that captured[i] becomes.
 *  - fewer visible than captured: 801, whatever the pairs say;
 *  - no pairs: by order;
 *  - else the old side must be exactly the captured set, in any order, and the
 *    new side injective and visible now: 1.
 */
CUresult gpumap_resolve(const CUuuid *captured, int ncaptured, const struct sim_host *h, uint32_t visible,
			const CUcheckpointGpuPair *pair, uint32_t npairs, int *target);

#endif
