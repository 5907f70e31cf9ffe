/*
 * --mesh: each rank has memory of all others, as NCCL's ranks have: pieces by handles of the VMM API, into which each writes the
 * tick for each other one. That takes the place of the collective, unless ranks run ahead: then only rank 0 writes.
 */
#ifndef CUDAWORK_MESH_H
#define CUDAWORK_MESH_H

#include "gpu.h"
#include "role.h"

#define MESH_MAX 1024 /* pieces of a rank */

/* Removes what an earlier run has left, before the ranks start. */
void mesh_clear(const char *common, int ranks);

/* Returns when this rank has all that the others give. */
void mesh_connect(const struct role *r, struct gpu *g, int pieces);

/* Waits until all others are at this tick. Where ranks run ahead it waits for nobody. */
void mesh_tick(const struct role *r, struct gpu *g, uint32_t tick);

#endif
