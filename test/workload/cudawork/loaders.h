/*
 * Children forked from the CUDA process that work for it, as the workers of a data loader
 * do. None of them uses CUDA. Each is asked at every tick, and its answers are checked.
 * They are named "loader".
 */
#ifndef CUDAWORK_LOADERS_H
#define CUDAWORK_LOADERS_H

#include <stdint.h>

#define MAX_LOADERS 1024

/*
 * To be called while the process has no threads of its own. They die with us. They wait in
 * different ways; first is the number of the first one's.
 */
void loaders_start(long n, int first);

/* Asks each of them, and counts a wrong answer as bad content. */
void loaders_ask(uint64_t tick);

void loaders_end(void);

#endif
