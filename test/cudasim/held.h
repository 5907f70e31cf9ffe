/*
 * held.h: what the resource manager has of a process beside its memory, and a restore
 * forgets or cannot make again. Each process keeps it in its file of ROOT/procs, for
 * whoever asks the kernel module.
 */
#ifndef CUDASIM_HELD_H
#define CUDASIM_HELD_H

#include "account.h"

enum { HELD_MOST = 64 };

struct held {
	uint32_t peers;	  /* pairs of GPUs that access one another's memory */
	uint32_t pools;	  /* that another GPU accesses */
	uint32_t numa;	  /* allocations in host NUMA memory */
	uint32_t fabrics; /* allocations with an address in the fabric */
	struct {
		uint64_t size;
		uint32_t others; /* GPUs to which it has been given */
	} fabric[HELD_MOST];
};

/* Keeps what this process has now. For callers inside the gate, and for the restore thread. */
void held_note(void);

/* What a process has; SELF is the caller's own name or NULL. */
void held_read(const struct sim_host *h, int pid, const char *self, struct held *out);

#endif
