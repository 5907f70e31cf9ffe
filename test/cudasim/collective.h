/* collective.h: cw_collective: ranks that wait for each other through the host. */
#ifndef CUDASIM_COLLECTIVE_H
#define CUDASIM_COLLECTIVE_H

#include "process.h"

CUresult collective_arrive(uint64_t group, uint32_t rank, uint64_t generation);
bool collective_done(uint64_t group, uint32_t size, uint64_t generation);

/*
 * After a restore, on whatever host: says again how far this process has come,
 * since a restored image may be older than the marks that it left.
 */
void collective_rejoin(void);

#endif
