/*
 * CUDA IPC: the exporter's first buffer, mapped by a second process on the same GPU.
 * The handle travels through a file, so that no socket lies between the two.
 */
#ifndef CUDAWORK_IPC_H
#define CUDAWORK_IPC_H

#include "gpu.h"
#include "role.h"

/* Called by both sides when their own memory is ready; the importer waits for the exporter here, if it imports now. */
void ipc_connect(const struct role *r, struct gpu *g);

/* At each tick. The importer: the exporter's counts never run backwards. */
void ipc_check(const struct role *r, struct gpu *g);

/* The importer unmaps; the exporter waits until it has, because its memory must outlive the mapping. */
void ipc_disconnect(const struct role *r, struct gpu *g);

/* In the common directory; left-overs of an earlier run are removed before the processes start. */
#define IPC_HANDLE "ipc-handle"
#define IPC_UNMAPPED "ipc-unmapped"
#define IPC_SHARE "share"   /* of --ipc-later: whoever runs us */
#define IPC_SHARED "shared" /* and the answer */
/* Of --ipc-vmm: whoever runs us has the exporter unmap what it has given, and give its handle back. It removes the file. */
#define IPC_UNMAP "unmap"
#define IPC_RELEASE "release"

/* Takes handles that nobody opens. */
void ipc_take_handles(struct gpu *g);

#endif
