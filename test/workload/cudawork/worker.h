/* One CUDA process: memory with known content, changed and compared at every tick until it is told to stop. */
#ifndef CUDAWORK_WORKER_H
#define CUDAWORK_WORKER_H

#include "options.h"
#include "role.h"

#define AHEAD_MAX 1000 /* ticks that a rank which runs ahead makes without synchronizing */

/* Returns the exit status; driver errors end the process inside. */
int worker_run(const struct options *o, const struct role *r);

#endif
