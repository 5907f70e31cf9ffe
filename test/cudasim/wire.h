/*
 * wire.h: what controller and restore thread say to each other. One command
 * is one write of at most PIPE_BUF bytes, so commands never mix in the pipe.
 */
#ifndef CUDASIM_WIRE_H
#define CUDASIM_WIRE_H

#include "abi.h"
#include "faults.h"
#include "host.h"

#define SIM_WIRE_MAGIC 0x63756431u
#define SIM_MAX_PAIRS 64

struct sim_command {
	uint32_t magic;
	uint32_t op; /* enum sim_op */
	uint64_t seq;
	int32_t pid; /* of the target as the controller sees it: for fault rules */
	uint32_t timeout_ms;
	uint32_t npairs;
	struct fault_plan plan; /* from the controller's own environment */
	char root[SIM_PATH];	/* the controller's host; Restore adopts it */
	CUcheckpointGpuPair pair[SIM_MAX_PAIRS];
};
_Static_assert(sizeof(struct sim_command) <= 4096, "one atomic write");

struct sim_reply {
	uint32_t magic;
	int32_t result;
	uint64_t seq;
	uint32_t state;
	uint32_t spare;
};

#endif
