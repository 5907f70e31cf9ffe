/* One GPU of the process: its primary context, its stream, its kernels, its memory. */
#ifndef CUDAWORK_GPU_H
#define CUDAWORK_GPU_H

#include <stdint.h>

#include "driver.h"
#include "memory.h"

/*
 * Device or managed memory whose content is known at every tick: word[i] == pattern_word(seed, i) + steps, or without
 * the steps if it is still.
 */
struct buffer {
	CUdeviceptr ptr;
	uint64_t reserved; /* bytes of addresses, if of virtual memory management */
	int pooled;
	uint64_t nwords;
	uint32_t seed;
	int still;        /* never written after it was filled */
	int flat;         /* seed everywhere, and no pattern */
	const char *kind; /* "device", "ballast", "flat" or "managed", for messages */
};

#define MAX_BUFFERS 32

#define MOST_LEAD 800
struct gpu {
	int ordinal;
	CUdevice dev;
	CUcontext ctx;
	CUstream stream; /* of the ticks */
	int copy_wait;   /* copies wait for it */
	CUfunction spin, fill, step;
	CUfunction collective; /* NULL unless asked for */
	CUdeviceptr meeting;   /* where the ranks meet; 0: the simulated driver knows */
	struct memory memory;  /* where device memory comes from */
	struct buffer buffers[MAX_BUFFERS];
	int nbuffers;
	CUevent marks[MOST_LEAD]; /* of gpu_mark */
	unsigned nmarks;
};

/* With a meeting, MEETING_BYTES of memory that the ranks share, collectives can be submitted. */
#define MEETING_BYTES 4096
/* All of these end the process on a CUDA error. gpu_open leaves the GPU's context current. */
void gpu_open(struct gpu *g, int ordinal, void *meeting, struct memory memory, int copy_wait);
void gpu_close(struct gpu *g);
void gpu_use(const struct gpu *g);
struct buffer *gpu_add_buffer(struct gpu *g, uint64_t bytes, uint32_t seed);
struct buffer *gpu_add_ballast(struct gpu *g, uint64_t bytes, uint32_t seed); /* still */
void gpu_add_flat(struct gpu *g, uint64_t bytes, unsigned char value); /* still */
struct buffer *gpu_add_managed(struct gpu *g, uint64_t bytes, uint32_t seed);

/* These submit work to the GPU's stream and do not wait. */
void gpu_submit_busy(struct gpu *g, long ms);
void gpu_submit_step(struct gpu *g, struct gpu *by); /* by's stream and kernel, g's memory */
void gpu_submit_collective(struct gpu *g, uint64_t group, uint32_t rank, uint32_t size, uint64_t generation);
void gpu_submit_hour(struct gpu *g); /* to a stream of its own */
void gpu_wait(struct gpu *g);

/* Marks what was submitted, and returns whether the GPU has done what was marked so many calls before. */
int gpu_mark(struct gpu *g, int before);

/* Compares a few words of each buffer, by way of scratch (at least GPU_SAMPLE_BYTES). */
#define GPU_SAMPLE_WORDS 16
#define GPU_SAMPLE_BYTES (GPU_SAMPLE_WORDS * sizeof(uint32_t))
void gpu_check_sample(struct gpu *g, uint64_t steps, uint32_t *scratch);

struct tally {
	uint64_t words, bad;
};

/* Compares every word of every buffer, read by the current context. */
struct tally gpu_check_all(struct gpu *g, uint64_t steps);

/* What the driver calls this GPU now: after a restore it can be another one. */
#define UUID_LEN 41 /* GPU-8-4-4-4-12 and the zero */
#define PCI_LEN 32
void gpu_identity(const struct gpu *g, char uuid[UUID_LEN], char pci[PCI_LEN]);

#endif
