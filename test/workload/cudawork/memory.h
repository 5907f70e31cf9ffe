/* Where a GPU's device memory comes from, and who else may access it. */
#ifndef CUDAWORK_MEMORY_H
#define CUDAWORK_MEMORY_H

#include <stdint.h>

#include "driver.h"

enum memory_kind {
	MEMORY_ALLOC,	      /* cuMemAlloc */
	MEMORY_VMM,	      /* cuMemCreate, mapped into reserved addresses */
	MEMORY_VMM_FD,	      /* and exported as a descriptor that stays open */
	MEMORY_VMM_FD_CLOSED, /* or that is closed again */
	MEMORY_VMM_RDMA,      /* gpuDirectRDMACapable */
	MEMORY_HOST_NUMA,     /* cuMemCreate in the memory of NUMA node 0 */
	MEMORY_POOL,	      /* a cuMemPool */
	MEMORY_POOL_FD,	      /* one whose memory can be exported */
	MEMORY_KINDS,
};
extern const char *const memory_names[MEMORY_KINDS];

struct memory {
	enum memory_kind kind;
	uint64_t handle_bytes; /* the most in one physical handle of virtual memory management, 0: all in one */
	CUmempool pool;
};

struct gpu;
struct buffer;

void memory_open(struct gpu *g);
void memory_close(struct gpu *g);

/* Sets ptr; nwords says how much. The content is undefined. */
void memory_take(struct gpu *g, struct buffer *b);
void memory_free(struct gpu *g, struct buffer *b);

/* Lets GPU `by` access all of g's device memory, or takes that away. */
CUresult memory_allow(struct gpu *g, struct gpu *by, int allowed);

#endif
