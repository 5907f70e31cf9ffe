/*
 * process.h: what one simulated CUDA process is: the block that controllers
 * find, the gate that the lock closes, the hazard, its devices.
 */
#ifndef CUDASIM_PROCESS_H
#define CUDASIM_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "account.h"

/*
 * Lies in the library's data, so that a controller which maps the same file
 * knows its offset and reads it with process_vm_readv. The magic is there from
 * the start, `ready` only after cuInit.
 */
#define SIM_BLOCK_MAGIC "cudasim-block-1"
struct sim_block {
	char magic[16];
	uint32_t size;
	_Atomic uint32_t ready;
	int32_t pid; /* getpid() of the process that initialised it: not of a fork */
	int32_t tid; /* the restore thread, in the same namespace */
	int32_t command_read, command_write;
	int32_t reply_read, reply_write;
	_Atomic uint32_t state; /* CUprocessState */
};
extern struct sim_block sim_block;

/* A context costs memory on its GPU, as in the real driver, though much less. */
#define SIM_CONTEXT_BYTES (1u << 20)

struct sim_device {
	CUuuid uuid;  /* of the GPU it is on now */
	char pci[16]; /* of the GPU it was on at cuInit: goes stale by a move */
	int gpu;      /* index in the host */
	int contexts;
	uint64_t bytes; /* accounted on the GPU, contexts included */
};

struct sim_process {
	struct sim_host host;
	char name[SIM_NAME];
	int alive; /* descriptor that holds the lock on the name */
	int hold;  /* descriptor of nvidiactl: what CRIU refuses to dump */
	void *mapped; /* what is mapped of nvidia-memory; a forked child inherits it */
	int ndevices; /* the GPUs visible at cuInit */
	struct sim_device device[SIM_MAX_GPUS];
	int nvisible; /* the part that CUDA_VISIBLE_DEVICES leaves, in its order */
	int visible[SIM_MAX_GPUS];
	_Atomic bool profiled; /* a profiler has been in it */
};
extern struct sim_process sim;

/* 0, or CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child. */
CUresult sim_ready(void);

/* The device of a CUdevice ordinal, or NULL. */
struct sim_device *sim_device_of(CUdevice ordinal);

/* Takes what a running CUDA process holds open, and lets go of it. */
int sim_hold(struct sim_process *p);
void sim_release(struct sim_process *p);

/*
 * The gate: launches, allocations and copies go through it, and the lock
 * closes it. Lock-free, because the restore thread opens it again while other
 * threads are stopped at any instruction.
 */
CUresult gate_enter(void);
void gate_leave(void);
void gate_close(void);
void gate_open(void);
bool gate_idle(void); /* nobody is inside */

/*
 * The hazard: the synchronizing calls are not held by the gate and touch
 * memory that checkpoint takes away: SIGSEGV in the calling thread.
 */
void hazard_set(bool on);

/*
 * The driver's own mutex. The synchronizing calls take it, and so does unlock,
 * alone among the controller's calls: while a thread is stopped that holds it,
 * an unlock through the restore thread waits.
 */
void driver_enter(void);
void driver_leave(void);
bool driver_idle(void);
void hazard_check(void);

uint64_t now_ns(void);
void sleep_ns(uint64_t ns);

/* agent.c: starts the restore thread; 0 or -errno. */
int agent_start(void);

#endif
