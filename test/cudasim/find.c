/* find.c: finding the simulated driver's block inside another process. */
#define _GNU_SOURCE
#include "find.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* The library as a file, as /proc/PID/maps names files. */
struct identity {
	char device[16];
	unsigned long inode;
	uintptr_t base;
};

/* One line of maps that begins a file: offset 0. */
static bool parse_mapping(const char *line, struct identity *id, const char **path)
{
	uint64_t start, end, offset;
	int at = 0;
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*4s %" SCNx64 " %15s %lu %n",
		   &start, &end, &offset, id->device, &id->inode, &at) < 5 || offset || !id->inode)
		return false;
	id->base = (uintptr_t)start;
	*path = line + at;
	return true;
}

/* This library's own identity, from its own maps: stat may name another device (overlayfs, btrfs). */
static bool own_identity(struct identity *own)
{
	Dl_info info;
	if (!dladdr(&sim_block, &info))
		return false;
	FILE *f = fopen("/proc/self/maps", "re");
	if (!f)
		return false;
	char *line = NULL;
	size_t size = 0;
	bool found = false;
	const char *path;
	while (!found && getline(&line, &size, f) > 0)
		found = parse_mapping(line, own, &path) && own->base == (uintptr_t)info.dli_fbase;
	free(line);
	fclose(f);
	return found;
}

static bool is_libcuda(const char *path)
{
	const char *name = strrchr(path, '/');
	return name && !strncmp(name + 1, "libcuda.so", 10);
}

/* The innermost number of an NSpid line: what the process itself sees. */
static int innermost(const char *status_path)
{
	char text[4096];
	if (read_file(status_path, text, sizeof text) <= 0)
		return -1;
	char *line = strstr(text, "\nNSpid:");
	if (!line)
		return -1;
	line++;
	line[strcspn(line, "\n")] = 0;
	char *last = strrchr(line, '\t');
	return last ? atoi(last) : -1;
}

/* Is it a CUDA process of this host? For targets that this process may not look into, such as pid 1. */
static bool registered(int pid)
{
	struct sim_host h;
	char path[SIM_FULLPATH];
	const char *root = getenv("CUDASIM_ROOT");
	if (!root || host_load(&h, root))
		return false;
	host_path(&h, path, "procs");
	DIR *d = opendir(path);
	bool found = false;
	for (struct dirent *e; d && !found && (e = readdir(d));)
		found = e->d_name[0] != '.' && process_alive(&h, e->d_name, sim.alive >= 0 ? sim.name : NULL) == pid;
	if (d)
		closedir(d);
	return found;
}

CUresult find_block(int pid, struct sim_block *out)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	struct identity own = {.base = 0}, seen;
	if (!own_identity(&own))
		return CUDA_ERROR_UNKNOWN;
	FILE *f = fopen(path, "re");
	if (!f) {
		if (errno != EACCES && errno != EPERM)
			return CUDA_ERROR_OPERATING_SYSTEM;
		return registered(pid) ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NOT_INITIALIZED;
	}
	CUresult r = CUDA_ERROR_NOT_INITIALIZED;
	char *line = NULL;
	size_t size = 0;
	while (getline(&line, &size, f) > 0) {
		const char *file;
		if (!parse_mapping(line, &seen, &file))
			continue;
		bool same = seen.inode == own.inode && !strcmp(seen.device, own.device);
		if (!same && !is_libcuda(file))
			continue;
		struct iovec to = {out, sizeof *out};
		struct iovec from = {(void *)(seen.base + ((uintptr_t)&sim_block - own.base)), sizeof *out};
		ssize_t n = process_vm_readv(pid, &to, 1, &from, 1, 0);
		if (n < 0 && errno == ESRCH) {
			r = CUDA_ERROR_OPERATING_SYSTEM;
		} else if (n < 0 && errno == EPERM) {
			r = CUDA_ERROR_NOT_PERMITTED;
		} else if (n != sizeof *out || memcmp(out->magic, SIM_BLOCK_MAGIC, sizeof out->magic) ||
			   out->size != sizeof *out) {
			/* Another build or version: drives nothing, as the real one would not. */
			line[strcspn(line, "\n")] = 0;
			sim_log("pid %d maps another libcuda (%s) than the one that drives", pid, strchr(line, '/'));
			r = CUDA_ERROR_UNKNOWN;
			continue;
		} else {
			r = CUDA_SUCCESS;
		}
		break;
	}
	free(line);
	fclose(f);
	if (r)
		return r;
	snprintf(path, sizeof path, "/proc/%d/status", pid);
	int inner = innermost(path);
	if (inner < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!atomic_load(&out->ready) || out->pid != inner)
		return CUDA_ERROR_NOT_INITIALIZED; /* before cuInit, or a forked child */
	return CUDA_SUCCESS;
}

int find_thread(int pid, int tid)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *d = opendir(path);
	if (!d)
		return 0;
	int found = 0;
	for (struct dirent *e; !found && (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		char status[128];
		snprintf(status, sizeof status, "/proc/%d/task/%.16s/status", pid, e->d_name);
		if (innermost(status) == tid)
			found = atoi(e->d_name);
	}
	closedir(d);
	return found;
}
