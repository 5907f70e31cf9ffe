/*
 * host.h: a simulated host is a directory. This file knows its layout.
 *
 *   ROOT/cudasim.host              what the host has (written once, by rename)
 *   ROOT/dev/nvidia{N,ctl,-uvm}    device nodes; removing one hides its GPU
 *   ROOT/proc/driver/nvidia/...    as the kernel module presents them
 *   ROOT/gpu/N/accounts            who holds how much of GPU N (account.c)
 *   ROOT/gpu/N/PROCESS.mem         device memory of one process on GPU N, sparse
 *   ROOT/procs/PROCESS             locked for as long as PROCESS lives
 *   ROOT/collective/GROUP/RANK     the last generation that RANK submitted
 *   ROOT/faults                    fault rules (faults.c)
 *   ROOT/run                       CUCRIU_RUN_DIR
 *
 * Nothing here allocates memory or uses stdio: the restore thread calls it
 * while every other thread of the job is stopped, possibly inside malloc.
 */
#ifndef CUDASIM_HOST_H
#define CUDASIM_HOST_H

#include "abi.h"

#define SIM_MAX_GPUS 16
#define SIM_PATH 1024 /* longest root */
#define SIM_FULLPATH (SIM_PATH + 128)
#define SIM_HOST_FILE "cudasim.host"
#define SIM_NVIDIA_MAJOR 195

struct sim_gpu {
	CUuuid uuid;
	char pci[16]; /* 0000:41:00.0 */
	uint64_t bytes;
};

struct sim_host {
	char root[SIM_PATH];
	char driver[32]; /* 580.159.04 */
	char model[64];
	/* Bytes: from this size on, an allocation that another GPU accesses does not come back. A test that wants to meet it
	   with less memory gives the host a smaller one. */
	uint64_t peer_limit;
	int ngpus;
	struct sim_gpu gpu[SIM_MAX_GPUS];
};

/* Reads ROOT/cudasim.host; 0 or -errno. */
int host_load(struct sim_host *h, const char *root);

/* PATH below the host's root, printf-like, into a SIM_FULLPATH buffer. */
void host_path(const struct sim_host *h, char *out, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Bit N is set when ROOT/dev/nvidiaN is there, in this process's own view. */
uint32_t host_visible(const struct sim_host *h);

/* Index of the GPU with that UUID, or -1. */
int host_find(const struct sim_host *h, const CUuuid *uuid);

/* GPU-xxxxxxxx-... (41 bytes with the end). */
#define SIM_UUID_TEXT 41
void uuid_format(const CUuuid *u, char *out);
int uuid_parse(CUuuid *u, const char *text);

/* Whole small file into buf, NUL-terminated; its length or -errno. */
long read_file(const char *path, char *buf, size_t size);

/* One line on standard error without stdio's locks. */
void sim_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
