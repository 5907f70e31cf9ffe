/* GPUs of one process that access one another's memory. */
#ifndef CUDAWORK_PEERS_H
#define CUDAWORK_PEERS_H

#include <stdint.h>

#include "gpu.h"
#include "role.h"

enum peers {
	PEERS_NONE,
	PEERS_ONE,  /* the first GPU accesses the second's memory */
	PEERS_BOTH, /* each GPU accesses the next one's, and the last the first's */
};

/* Ends the process when the GPUs cannot. To be called when all memory is there. */
void peers_connect(struct gpu *gpus, int n, enum peers peers, int now);

/* The GPU that steps gpus[i]'s memory at this tick: itself, or one that has access to it, in turn. */
struct gpu *peers_stepper(struct gpu *gpus, int n, int i, uint64_t tick);

/* The GPU that has access to gpus[i]'s memory, or NULL. */
struct gpu *peers_of(struct gpu *gpus, int n, int i);

/* Answers DIR/peer, which says "on" or "off": DIR/peered says what the driver answered. */
void peers_answer(const struct role *r, struct gpu *gpus, int n);

#endif
