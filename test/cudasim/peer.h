/* peer.h: GPUs of one process that access one another's memory, and what becomes of that at a restore. */
#ifndef CUDASIM_PEER_H
#define CUDASIM_PEER_H

#include "memory.h"

/*
 * For the restore thread. What the real driver forgets at a restore is its fabric
 * objects: one for each allocation of 512 MiB or more, and one for each GPU that
 * accesses it; and one for each pool that other GPUs access.
 */

/* CUDA_SUCCESS, or why a restore fails in its middle: 1 or 999. */
CUresult peers_restorable(void);
/* The devices, as bits, that access an allocation of another one. */
uint32_t peers_of(const struct allocation *a);
/* How many pairs of devices access one another's memory. */
uint32_t peers_pairs(void);

/* What is gone after a restore that succeeds. */
void peers_restored(void);

/* The device index of a location, or -1. */
int location_device(CUmemLocation location);

/* pool.c */
bool pool_reaches(CUmempool pool, int device);
bool pool_lost(CUmempool pool, int device);
void pools_restored(void);
/* How many pools another device accesses. */
uint32_t pools_shared(void);

#endif
