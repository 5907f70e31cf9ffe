/*
 * account.h: which process holds how much memory of which GPU.
 *
 * A process is named PIDNS-PID-RANDOM. It is alive for as long as somebody
 * holds the POSIX record lock on ROOT/procs/NAME: the kernel drops that lock
 * when the process dies or execs, a forked child does not inherit it, and
 * F_GETLK tells its owner's pid in the asker's own pid namespace.
 */
#ifndef CUDASIM_ACCOUNT_H
#define CUDASIM_ACCOUNT_H

#include "host.h"

#define SIM_NAME 48

/* Names this process and takes its lock; the descriptor or -errno. */
int process_register(const struct sim_host *h, char name[SIM_NAME]);
void process_unregister(const struct sim_host *h, const char *name, int fd);

/*
 * The pid that owns NAME as this process sees it, 0 if it is alive but not
 * visible from here, -1 if it is dead. SELF is the caller's own name or NULL:
 * a process must not open its own file, closing it would drop its lock.
 */
int process_alive(const struct sim_host *h, const char *name, const char *self);

/*
 * Makes a NAME for memory that is exported. It counts as alive for as long as somebody has the descriptor that
 * is returned, or a copy of it that lies in a socket. -1: it could not be made.
 */
int export_open(const struct sim_host *h, char name[SIM_NAME]);

/* Adds delta bytes to what NAME holds; SELF is the caller's own name. CUDA_ERROR_OUT_OF_MEMORY if GPU is full. */
CUresult account_add(const struct sim_host *h, int gpu, const char *self, const char *name, int64_t delta);

/* Ends NAME's account on GPU and frees its memory. */
void account_drop(const struct sim_host *h, int gpu, const char *name);

struct account_use {
	int pid;
	uint64_t bytes;
};

/* Used bytes of GPU in *used, and up to max holders; their number or -errno. */
int account_list(const struct sim_host *h, int gpu, const char *self,
		 uint64_t *used, struct account_use *out, int max);

#endif
