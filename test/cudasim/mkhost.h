/* mkhost.h: making a simulated host. */
#ifndef CUDASIM_MKHOST_H
#define CUDASIM_MKHOST_H

#include <stdbool.h>
#include <stdint.h>

struct host_plan {
	int gpus;
	uint64_t mib_per_gpu;
	uint64_t peer_limit_mib; /* 0: as the real driver has it */
	const char *seed; /* NULL: UUIDs at random */
	const char *model;
	const char *driver; /* 580.159.04 */
};

/*
 * Makes the host in the directory ROOT, which may exist if it is empty, or
 * finds the one that is there (*made says which). Prints what is wrong; 0 or -1.
 */
int host_make(const char *root, const struct host_plan *plan, bool *made);

#endif
