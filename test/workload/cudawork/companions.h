/*
 * What runs beside the ticks: threads that synchronise with the GPU, threads that
 * only use the CPU, pinned host memory under constant check, a forked child.
 */
#ifndef CUDAWORK_COMPANIONS_H
#define CUDAWORK_COMPANIONS_H

#include <stdint.h>

#include "gpu.h"
#include "options.h"

/*
 * A child forked without exec: it keeps the driver's descriptors and mappings and has
 * no CUDA of its own, as a data loader's workers do. It waits (see child.h), and dies with us.
 * To be called while the process has no threads of its own. With share_files it has our table
 * of descriptors.
 */
void companions_fork_child(int share_files);

/* A GPU device that stays open and mapped, and has nothing to do with CUDA. */
void companions_look(void);

/* An io_uring that stays open and unused; none if the kernel says that there is none. */
void companions_io_uring(void);

/* One thread for each GPU that repeats the call of --spin and never submits work. */
void companions_spin(struct gpu *gpus, int n, enum spin mode);

/* A thread that starts programs by vfork: until its exec, the child has our memory. */
void companions_vfork(void);

/* Threads that count, and notice when their memory does not follow. */
void companions_count(long n);

/* A thread that nearly always holds the lock of malloc, which all threads share. */
void companions_trim(void);

/* Threads that never leave the CPU by themselves. */
void companions_burn(long n);

/*
 * Pinned host memory of gpus[0] that a thread compares over and over. Returns scratch
 * space in the same allocation, for reading the GPU back by way of pinned memory.
 */
uint32_t *companions_pin(struct gpu *g, enum pinned how);

/* Ends the child and the threads; afterwards no thread is inside the driver. */
void companions_end(void);

#endif
