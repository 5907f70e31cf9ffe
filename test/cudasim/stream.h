/*
 * stream.h: streams as queues of pending work. Effects on memory happen when
 * work is submitted; what is pending is only time (cw_spin) and other ranks
 * (cw_collective), which is all that a program can observe after synchronizing.
 */
#ifndef CUDASIM_STREAM_H
#define CUDASIM_STREAM_H

#include "process.h"

/* CUDA's special handles for the null stream. */
#define STREAM_LEGACY ((CUstream)1)
#define STREAM_PER_THREAD ((CUstream)2)

CUresult stream_spin(CUstream s, uint64_t ns);
CUresult stream_collective(CUstream s, uint64_t group, uint32_t rank, uint32_t size, uint64_t generation);
bool stream_valid(CUstream s);

/*
 * Waits inside the gate for everything submitted, as a blocking copy does: not for
 * streams that are CU_STREAM_NON_BLOCKING.
 */
void streams_drain(void);

/* For the restore thread: nothing is pending; also false if it cannot be told now. */
bool streams_idle(void);

#endif
