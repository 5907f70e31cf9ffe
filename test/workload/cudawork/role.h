/* Which part a process plays in the tree. */
#ifndef CUDAWORK_ROLE_H
#define CUDAWORK_ROLE_H

#include <stdint.h>

#include "files.h"

enum part {
	ALONE,    /* the only process */
	MEMBER,   /* of --procs: independent of the others */
	RANK,     /* of --ranks: in a collective with the others at every tick */
	EXPORTER, /* of --ipc: owns the shared memory */
	IMPORTER, /* of --ipc: reads it */
};

struct role {
	enum part part;
	char dir[PATH_LEN];    /* of this process */
	char common[PATH_LEN]; /* of the whole tree; the same as dir when alone */
	int rank, size;
	uint64_t group; /* names the collective */
	int ipc_vmm;    /* of --ipc: by a handle of the VMM API */
	int ipc_later;  /* of --ipc: the importer waits until the common directory has a file "share" */
	void *meeting;  /* of the ranks, shared among them */
	uint64_t ahead; /* how many ticks a rank may be ahead of another */
};

/*
 * Whether to end before tick number `next`. A stop file in the common directory ends all
 * processes; one in the process's own directory ends that one (not a rank: the others
 * would wait for it for ever).
 */
int role_stop(const struct role *r, uint64_t next);

#endif
