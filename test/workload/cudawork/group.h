/* --procs, --ranks and --ipc: a plain parent without CUDA, and CUDA processes forked before cuInit. */
#ifndef CUDAWORK_GROUP_H
#define CUDAWORK_GROUP_H

#include "options.h"

/* Runs the processes and waits for them. Returns the exit status of the tree: the worst of theirs. */
int group_run(const struct options *o);

#endif
