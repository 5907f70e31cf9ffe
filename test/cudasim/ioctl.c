/*
 * ioctl.c: what the kernel module answers about the memory of processes. It cannot be
 * asked through the simulated nvidiactl, which is another driver's device, so whoever
 * asks calls this with the borrowed descriptor. Its owner (F_SETOWN) is the process.
 *
 * A process has one client, with a subdevice for each GPU of the host, an object for
 * each piece of memory that it has imported or that was imported from it, one for all
 * other memory of each GPU, and what it says of itself in ROOT/procs: see held.h.
 *
 * ROOT/nvrm, one line: `silent` (no answer, as of another device).
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

#include "held.h"
#include "imports.h"

enum { MOST = 2048, OTHERS = 16, CLIENT = RM_FIRST_CLIENT, OBJECT = RM_FIRST_OBJECT, DEVICE = OBJECT + 2, SUBDEVICE = OBJECT + 3, PER_GPU = 9 };
enum {
	REST = OBJECT + 0x100, /* and one handle for each GPU */
	P2P = REST + SIM_MAX_GPUS,
	NUMA = P2P + SIM_MAX_GPUS * SIM_MAX_GPUS, /* two each: the driver has a duplicate */
	POOL = NUMA + 2 * HELD_MOST,
	FABRIC = POOL + HELD_MOST, /* OTHERS each: itself, and one duplicate for each other GPU that has it */
	MEMORY = FABRIC + OTHERS * HELD_MOST,
};
enum { OK = RM_STATUS_OK, INVALID_CLIENT = RM_STATUS_INVALID_CLIENT, NO_OBJECT = 0x57, NOT_SUPPORTED = 0x56 };

struct rm_control {
	uint32_t client, object, command, flags;
	void *parameters;
	uint32_t size, status;
};

static struct asked {
	struct sim_host host;
	int pid; /* of the client */
	bool silent;
	const char *self;

	/* What that process has, as of the last question about its first GPU, with which a search begins. */
	int of;
	struct held held;
	struct sim_import memory[MOST]; /* the imports in which it takes part */
	int nmemory;
	uint64_t rest[SIM_MAX_GPUS]; /* the memory of each GPU that has no object of its own */
} asked;

static int imports(struct sim_import all[MOST]) { return import_list(&asked.host, asked.self, all, MOST); }

static void look_again(void)
{
	static struct sim_import all[MOST];
	struct account_use use[256];
	uint64_t used;
	int n = imports(all);
	asked.of = asked.pid;
	asked.nmemory = 0;
	for (int i = 0; i < n; i++)
		if (all[i].importer_pid == asked.pid || all[i].exporter_pid == asked.pid)
			asked.memory[asked.nmemory++] = all[i];
	for (int gpu = 0; gpu < asked.host.ngpus; gpu++) {
		uint64_t *rest = &asked.rest[gpu];
		int uses = account_list(&asked.host, gpu, asked.self, &used, use, 256);
		*rest = 0;
		for (int i = 0; i < uses && i < 256; i++)
			*rest += use[i].pid == asked.pid ? use[i].bytes : 0;
		for (int i = 0; i < asked.nmemory; i++)
			if (asked.memory[i].exporter_pid == asked.pid && asked.memory[i].gpu == gpu)
				*rest -= asked.memory[i].size < *rest ? asked.memory[i].size : *rest;
	}
	held_read(&asked.host, asked.pid, asked.self, &asked.held);
}

static uint64_t address_of(const struct sim_import *i)
{
	uint64_t hash = 1469598103934665603ull;
	for (const char *c = i->exporter; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
	return (hash << 20) + i->offset;
}

/* Whether an object is one of a kind; which one, if so. */
static bool is_one(uint32_t object, uint32_t first, uint32_t count, uint32_t *which)
{
	*which = object - first;
	return object >= first && *which < count;
}

static bool is_fabric(uint32_t object, uint32_t *which)
{
	if (!is_one(object, FABRIC, OTHERS * asked.held.fabrics, which))
		return false;
	uint32_t duplicate = *which % OTHERS;
	*which /= OTHERS;
	return duplicate <= asked.held.fabric[*which].others;
}

static uint32_t handle_info(uint32_t client, uint32_t object, uint32_t index, uint64_t *result)
{
	uint32_t i, class = 0, gpu = 0;
	if (asked.of != asked.pid || object == SUBDEVICE)
		look_again();
	if (object == client) {
		class = 0x41;
	} else if (is_one(object, SUBDEVICE, PER_GPU * (uint32_t)asked.host.ngpus, &i) && i % PER_GPU == 0) {
		class = RM_CLASS_SUBDEVICE, gpu = i / PER_GPU;
	} else if (is_one(object, REST, (uint32_t)asked.host.ngpus, &i) && asked.rest[i]) {
		class = RM_CLASS_GPU_MEMORY, gpu = i;
	} else if (is_one(object, MEMORY, (uint32_t)asked.nmemory, &i)) {
		class = RM_CLASS_GPU_MEMORY, gpu = (uint32_t)asked.memory[i].gpu;
	} else if (is_one(object, P2P, asked.held.peers, &i)) {
		class = RM_CLASS_P2P;
	} else if (is_one(object, NUMA, 2 * asked.held.numa, &i)) {
		class = RM_CLASS_SYSTEM_MEMORY;
	} else if (is_one(object, POOL, asked.held.pools, &i) || is_fabric(object, &i)) {
		class = RM_CLASS_FABRIC;
	} else {
		return NO_OBJECT;
	}
	*result = index == RM_HANDLE_CLASS ? class : DEVICE + gpu * PER_GPU;
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
	static struct sim_import all[MOST];
	struct account_use use[256];
	uint64_t used;
	int n = imports(all), uses = account_list(&asked.host, gpu, asked.self, &used, use, 256);
	for (uint32_t i = 0; i < count; i++) {
		list[i].result = OK;
		list[i].private = list[i].duplicated = list[i].owned = 0;
		for (int j = 0; j < uses && j < 256; j++)
			list[i].owned += use[j].pid == (int)list[i].pid ? use[j].bytes : 0;
		for (int j = 0; j < n; j++)
			if (all[j].importer_pid == (int)list[i].pid && all[j].gpu == gpu)
				*(all[j].exporter_pid < 0 ? &list[i].owned : &list[i].duplicated) += all[j].size;
	}
	return OK;
}

/* Is one object the other's duplicate? */
static bool duplicates(uint32_t one, uint32_t other)
{
	uint32_t i, j;
	if (is_one(one, NUMA, 2 * asked.held.numa, &i) && is_one(other, NUMA, 2 * asked.held.numa, &j))
		return i / 2 == j / 2;
	return is_fabric(one, &i) && is_fabric(other, &j) && i == j;
}

static uint32_t control(uint32_t client, uint32_t object, uint32_t command, char *p)
{
	uint32_t i, gpu = (object - SUBDEVICE) / PER_GPU;
	if (client != CLIENT + (uint32_t)asked.pid % 0x400)
		return INVALID_CLIENT;
	if (command == RM_GET_HANDLE_INFO)
		return handle_info(client, *(uint32_t *)p, *(uint32_t *)(p + 4), (uint64_t *)(p + 8));
	bool rest = is_one(object, REST, (uint32_t)asked.host.ngpus, &i);
	if (command >> 16 == 0x41 && !rest && !is_one(object, MEMORY, (uint32_t)asked.nmemory, &i))
		return NO_OBJECT;
	switch (command) {
	case RM_GET_SURFACE_INFO:
		if (*(uint32_t *)p != 1 || **(uint32_t **)(p + 8) != RM_SURFACE_PAGES)
			return NOT_SUPPORTED;
		(*(uint32_t **)(p + 8))[1] = (uint32_t)((rest ? asked.rest[i] : asked.memory[i].size) >> 12);
		return OK;
	case RM_GET_ADDRESS:
		memset(p, 0, 48);
		*(uint64_t *)p = rest ? (uint64_t)asked.pid << 40 : address_of(&asked.memory[i]);
		return OK;
	case RM_GET_FABRIC_INFO:
		*(uint32_t *)(p + 16) = is_one(object, POOL, asked.held.pools, &i) ? RM_FLEXIBLE : 0;
		*(uint64_t *)p = is_fabric(object, &i) ? asked.held.fabric[i].size : 0;
		return OK;
	case RM_ARE_DUPLICATES:
		p[8] = duplicates(*(uint32_t *)p, *(uint32_t *)(p + 4));
		return OK;
	case RM_GET_GPU:
		*(uint32_t *)p = gpu + 1;
		return OK;
	case RM_GET_PIDS:
		return list_pids((uint32_t *)(p + 8), (uint32_t *)(p + 12), RM_PIDS_ROOM);
	case RM_GET_PID_INFO:
		return pid_infos((int)gpu, (struct pid_info *)(p + 8), *(uint32_t *)p);
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
			asked.silent = !strncmp(mode, "silent", 6);
		}
		if (request != RM_CONTROL || asked.pid <= 0 || asked.silent)
			err = ENOTTY;
	}
	if (!err)
		c->status = control(c->client, c->object, c->command, c->parameters);
	pthread_mutex_unlock(&one);
	return err;
}
