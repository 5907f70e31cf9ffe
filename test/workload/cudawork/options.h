/* The command line. */
#ifndef CUDAWORK_OPTIONS_H
#define CUDAWORK_OPTIONS_H

#include "loaders.h"
#include "memory.h"
#include "mesh.h"
#include "peers.h"
#include "profiler.h"

#define MAX_GPUS 16
#define MAX_PROCS 64

/* The call that the spin threads repeat. */
enum spin {
	SPIN_NONE,
	SPIN_STREAM_SYNC,
	SPIN_EVENT_SYNC,
	SPIN_CTX_SYNC,
	SPIN_STREAM_QUERY,
	SPIN_EVENT_QUERY,
};

/* Host memory that is checked all the time. */
enum pinned {
	PINNED_NONE,
	PINNED_ALLOCATED,
	PINNED_REGISTERED,
};

struct options {
	const char *dir;
	int gpus[MAX_GPUS]; /* ordinals of cuDeviceGet */
	int ngpus;
	long mib;     /* of device memory on each GPU */
	long ballast_mib; /* more on each GPU that no tick touches */
	long ballast_pieces; /* that there are of it */
	long zeros_mib, flat_mib; /* the same: all bytes 0, or another */
	long tick_ms; /* least pause between ticks */
	long busy_ms; /* length of the long kernel of each tick, 0: none */
	long threads; /* ordinary CPU threads */
	long burn;    /* more of them, that never pause */
	int trim;     /* one that holds the lock of malloc */
	long loaders; /* children that work for us */
	enum spin spin;
	struct memory memory;
	enum peers peers;
	int peers_later;
	enum profiler profiler;
	enum pinned pinned;
	int managed, mlock, fork_child, share_files, vfork, look, context_later, io_uring, ipc_handles;
	/* At most one of these three is set. */
	int ipc, ipc_vmm, ipc_later;
	int ranks;
	int procs;
	int copy_wait; /* a tick ends in a copy, which the driver's lock holds, and not in a synchronizing call */
	int ahead;    /* of the ranks all but the first run ahead */
	int mesh;     /* pieces of memory that each rank gives all others, 0: none */
	int lead;     /* how many ticks they stay ahead of what their GPUs have done; 0: as it comes */
	int hog_rank; /* has a kernel that does not end; -1: none has */
};

/* Ends the process with EXIT_USAGE when the arguments make no sense. */
struct options options_parse(int argc, char **argv);

#endif
