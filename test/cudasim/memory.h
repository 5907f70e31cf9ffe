/*
 * memory.h: device memory. A device pointer is SIM_VA_BASE plus an offset into
 * the process's memory file on the GPU where the pointer's device is now, so
 * pointers stay what they are when the process moves.
 */
#ifndef CUDASIM_MEMORY_H
#define CUDASIM_MEMORY_H

#include <pthread.h>

#include "process.h"

#define SIM_VA_BASE 0x300000000000ull

enum memory_kind { MEMORY_DEVICE, MEMORY_MANAGED, MEMORY_PINNED, MEMORY_IMPORTED, MEMORY_HOST_NUMA };

struct allocation {
	struct allocation *next;
	CUdeviceptr va;
	uint64_t asked, size; /* in bytes, and rounded up to whole pages */
	enum memory_kind kind;
	int device; /* index in sim.device */
	CUcontext context; /* NULL: made by cuMemCreate, and of no context */
	bool released;	   /* of cuMemCreate: the handle is given back, and only a mapping holds it */
	unsigned retained; /* how often the handle was taken once more */
	int handle_types;  /* of cuMemCreate */
	CUmempool pool;	   /* it is from, or NULL */
	uint32_t access;   /* of cuMemCreate: the devices that cuMemSetAccess has let in, as bits */
	bool fabric;	   /* large enough for other GPUs to reach it as fabric memory, and never restored: see peer.c */
	uint64_t staged;      /* offset in the staging memory while checkpointed */
	uint64_t offset;      /* in the file: of imported memory the exporter's */
	unsigned again;	      /* how often its context has opened it by cuIpc once more */
	char exporter[SIM_NAME];
	int exporter_gpu;
	int held; /* of imported memory that its exporter has released: a copy of the descriptor */
	char exported[SIM_NAME]; /* who has its memory once it is released, while there is a descriptor of it */
};

/* A stretch of memory opened for one operation. */
struct region {
	int fd; /* -1: host memory at `host` */
	uint64_t offset;
	unsigned char *host;
};

CUresult region_open(struct region *r, CUdeviceptr p, uint64_t n);
CUresult region_read(const struct region *r, uint64_t at, void *buf, uint64_t n);
CUresult region_write(const struct region *r, uint64_t at, const void *buf, uint64_t n);
void region_close(struct region *r);

/* Whether the device of a context may do that to [p, p+n): 700, or 719 where access was lost at a restore. */
CUresult memory_reach(CUcontext c, CUdeviceptr p, uint64_t n, bool kernel);

/* Memory of another process is opened and closed by one thread at a time, which is inside the gate. */
extern pthread_mutex_t importing;

/* The allocation that has p, for callers inside the gate. */
struct allocation *memory_find(CUdeviceptr p);
struct allocation *memory_new(enum memory_kind kind, int device, CUcontext context, uint64_t size);
/* Reserves addresses. */
CUdeviceptr memory_reserve(uint64_t size);
/* Calls f on each allocation, with the list locked, until one answers other than 0. */
CUresult memory_each(CUresult (*f)(struct allocation *a, void *arg), void *arg);
/* Takes it out of the list and frees it. */
void memory_remove_allocation(struct allocation *a);
/* Has exported memory been released, and is kept for who has a descriptor? */
bool memory_outlives(const char *exported, int gpu);
/* Frees everything of a context that ends. */
void memory_drop_context(CUcontext context);

/* Accounts delta bytes to a device of this process. */
CUresult device_account(int device, int64_t delta);

/* For the restore thread; no other thread is inside the gate. */
bool memory_has_managed(void);
struct staging {
	unsigned char *base; /* one private anonymous mapping between two guard pages */
	uint64_t size;
};
CUresult memory_stage(struct staging *s);
/* Writes staged content into the memory files of process p. */
CUresult memory_unstage(const struct staging *s, const struct sim_process *p);
void staging_free(struct staging *s);

#endif
