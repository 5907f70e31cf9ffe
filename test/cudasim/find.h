/* find.h: finding the simulated driver's block inside another process. */
#ifndef CUDASIM_FIND_H
#define CUDASIM_FIND_H

#include "process.h"

/* The target's block; 304 if it is gone, 3 if it has no CUDA of its own. */
CUresult find_block(int pid, struct sim_block *out);

/* The target's thread TID (as the target sees it) as this process sees it; 0 if gone. */
int find_thread(int pid, int tid);

#endif
