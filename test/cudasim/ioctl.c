/*
 * ioctl.c: what the kernel module answers about the memory of processes. It cannot be
 * asked through the simulated nvidiactl, which is another driver's device, so whoever
 * asks calls this with the borrowed descriptor. Its owner (F_SETOWN) is the process.
 *
 * A process has one client, with a subdevice for each GPU of the host and an object for
 * each piece of memory that it has imported or that was imported from it, and one for the
 * rest. A process on several GPUs lacks that one: whoever adds up what it has finds too
 * little, and does not believe what is missing here, such as fabric objects.
 *
 * ROOT/nvrm, one line: `silent` (no answer, as of another device), `lie` (nothing is
 * ever shared).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "imports.h"

enum { CLIENT = 0xc1d00000, OBJECT = 0x5c000000, DEVICE = OBJECT + 2, SUBDEVICE = OBJECT + 3, PER_GPU = 9, MEMORY = OBJECT + 0x100, MOST = 64, REST = MEMORY + MOST };
enum { OK = 0, INVALID_CLIENT = 0x23, NO_OBJECT = 0x57, NOT_SUPPORTED = 0x56 };

struct rm_control {
	uint32_t client, object, command, flags;
	void *parameters;
	uint32_t size, status;
};

static struct asked {
	struct sim_host host;
	int pid; /* of the client */
	bool lies, silent;
	const char *self;
} asked;

/* The imports in which a process takes part. */
static int memory_of(struct sim_import *found)
{
	struct sim_import all[MOST];
	int n = asked.lies ? 0 : import_list(&asked.host, asked.self, all, MOST), m = 0;
	for (int i = 0; i < n; i++)
		if (all[i].importer_pid == asked.pid || all[i].exporter_pid == asked.pid)
			found[m++] = all[i];
	return m;
}

/* What a process holds on a GPU, imports not counted. */
static uint64_t held_on(int gpu, int pid)
{
	struct account_use use[256];
	uint64_t used, held = 0;
	int n = account_list(&asked.host, gpu, asked.self, &used, use, 256);
	for (int i = 0; i < n && i < 256; i++)
		held += use[i].pid == pid ? use[i].bytes : 0;
	return held;
}

/* The memory that has no object of its own, and the GPU it is on; 0 if there are several. */
static uint64_t rest_of(int *gpu)
{
	struct sim_import memory[MOST];
	uint64_t rest = 0;
	int gpus = 0, n = memory_of(memory);
	for (int i = 0; i < asked.host.ngpus; i++) {
		uint64_t held = held_on(i, asked.pid);
		if (held)
			rest = held, *gpu = i, gpus++;
	}
	for (int i = 0; i < n; i++)
		if (memory[i].exporter_pid == asked.pid)
			rest -= memory[i].size < rest ? memory[i].size : rest;
	return gpus == 1 ? rest : 0;
}

static uint64_t address_of(const struct sim_import *i)
{
	uint64_t hash = 1469598103934665603ull;
	for (const char *c = i->exporter; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
	return (hash << 20) + i->offset;
}

static uint32_t handle_info(uint32_t client, uint32_t object, uint32_t index, uint64_t *result)
{
	struct sim_import memory[MOST];
	uint32_t gpu = (object - SUBDEVICE) / PER_GPU;
	int of_rest = 0;
	if (object == client) {
		*result = 0x41;
	} else if (object >= SUBDEVICE && (object - SUBDEVICE) % PER_GPU == 0 && gpu < (uint32_t)asked.host.ngpus) {
		*result = index == 2 ? 0x2080 : DEVICE + gpu * PER_GPU;
	} else if (object >= MEMORY && object < MEMORY + MOST && (int)(object - MEMORY) < memory_of(memory)) {
		*result = index == 2 ? 0x40 : DEVICE + (uint32_t)memory[object - MEMORY].gpu * PER_GPU;
	} else if (object == REST && rest_of(&of_rest)) {
		*result = index == 2 ? 0x40 : DEVICE + (uint32_t)of_rest * PER_GPU;
	} else {
		return NO_OBJECT;
	}
	return OK;
}

/* Whoever is in ROOT/procs has every GPU open. */
static uint32_t list_pids(uint32_t *count, uint32_t *pids, uint32_t room)
{
	char path[SIM_FULLPATH];
	host_path(&asked.host, path, "procs");
	DIR *d = opendir(path);
	*count = 0;
	for (struct dirent *e; d && *count < room && (e = readdir(d));) {
		int pid = e->d_name[0] == '.' ? -1 : process_alive(&asked.host, e->d_name, asked.self);
		if (pid > 0)
			pids[(*count)++] = (uint32_t)pid;
	}
	if (d)
		closedir(d);
	return OK;
}

struct pid_info {
	uint32_t pid, index, result, pad;
	uint64_t private, owned, duplicated, protected[3];
	uint32_t instances[2];
};

static uint32_t pid_infos(int gpu, struct pid_info *list, uint32_t count)
{
	struct sim_import all[MOST];
	int imports = asked.lies ? 0 : import_list(&asked.host, asked.self, all, MOST);
	for (uint32_t i = 0; i < count; i++) {
		list[i].result = OK;
		list[i].private = list[i].duplicated = 0;
		list[i].owned = held_on(gpu, (int)list[i].pid);
		for (int j = 0; j < imports; j++)
			if (all[j].importer_pid == (int)list[i].pid && all[j].gpu == gpu)
				*(all[j].exporter_pid < 0 ? &list[i].owned : &list[i].duplicated) += all[j].size;
	}
	return OK;
}

static uint32_t control(uint32_t client, uint32_t object, uint32_t command, char *p)
{
	struct sim_import memory[MOST];
	int at = (int)(object - MEMORY), gpu = (int)(object - SUBDEVICE) / PER_GPU;
	bool rest = object == REST;
	if (client != CLIENT + (uint32_t)asked.pid % 0x400)
		return INVALID_CLIENT;
	if (command == 0xd02)
		return handle_info(client, *(uint32_t *)p, *(uint32_t *)(p + 4), (uint64_t *)(p + 8));
	if (command >> 16 == 0x41 && !rest && (at < 0 || at >= memory_of(memory)))
		return NO_OBJECT;
	switch (command) {
	case 0x410110:
		if (*(uint32_t *)p != 1 || **(uint32_t **)(p + 8) != 7)
			return NOT_SUPPORTED;
		(*(uint32_t **)(p + 8))[1] = (uint32_t)((rest ? rest_of(&gpu) : memory[at].size) >> 12);
		return OK;
	case 0x410103:
		memset(p, 0, 48);
		*(uint64_t *)p = rest ? (uint64_t)asked.pid << 40 : address_of(&memory[at]);
		return OK;
	case 0xd07:
		p[8] = 0;
		return OK;
	case 0x20800142:
		*(uint32_t *)p = (uint32_t)gpu + 1;
		return OK;
	case 0x2080018d:
		return list_pids((uint32_t *)(p + 8), (uint32_t *)(p + 12), 950);
	case 0x2080018e:
		return pid_infos(gpu, (struct pid_info *)(p + 8), *(uint32_t *)p);
	}
	return NOT_SUPPORTED;
}

/* 0 or an errno. One question at a time. */
EXPORT long cudasim_ioctl(int fd, unsigned long request, void *argument)
{
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	static struct { int fd, pid; } owners[64]; /* as of the last question about the client itself */
	struct rm_control *c = argument;
	int slot = fd % 64;
	char path[SIM_FULLPATH], mode[16] = "";
	const char *root = getenv("CUDASIM_ROOT");
	long err = 0;
	pthread_mutex_lock(&one);
	if (!asked.host.ngpus && (!root || host_load(&asked.host, root)))
		err = ENOTTY;
	if (!err) {
		if (owners[slot].fd != fd || *(uint32_t *)c->parameters == c->client) {
			owners[slot].fd = fd;
			owners[slot].pid = fcntl(fd, F_GETOWN);
		}
		asked.pid = owners[slot].pid;
		asked.self = sim_ready() ? NULL : sim.name;
		if (c->object == c->client && *(uint32_t *)c->parameters == c->client) { /* seldom enough */
			host_path(&asked.host, path, "nvrm");
			read_file(path, mode, sizeof mode);
			asked.lies = !strncmp(mode, "lie", 3);
			asked.silent = !strncmp(mode, "silent", 6);
		}
		if (request != 0xc020462a || asked.pid <= 0 || asked.silent)
			err = ENOTTY;
	}
	if (!err)
		c->status = control(c->client, c->object, c->command, c->parameters);
	pthread_mutex_unlock(&one);
	return err;
}
