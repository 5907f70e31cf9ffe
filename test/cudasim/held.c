/* held.c: see held.h. */
#define _GNU_SOURCE
#include "held.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

static struct held own;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static CUresult add(struct allocation *a, void *unused)
{
	(void)unused;
	if (a->kind == MEMORY_HOST_NUMA && own.numa < HELD_MOST)
		own.numa++;
	if (a->fabric && !a->pool && own.fabrics < HELD_MOST) {
		own.fabric[own.fabrics].size = a->size;
		own.fabric[own.fabrics++].others = (uint32_t)__builtin_popcount(peers_of(a));
	}
	return CUDA_SUCCESS;
}

void held_note(void)
{
	pthread_mutex_lock(&mutex);
	memset(&own, 0, sizeof own);
	memory_each(add, NULL);
	own.peers = peers_pairs();
	own.pools = pools_shared();
	if (sim.alive >= 0 && pwrite(sim.alive, &own, sizeof own, 0) != sizeof own)
		sim_log("what %s has cannot be kept", sim.name);
	pthread_mutex_unlock(&mutex);
}

void held_read(const struct sim_host *h, int pid, const char *self, struct held *out)
{
	char path[SIM_FULLPATH];
	host_path(h, path, "procs");
	DIR *d = opendir(path);
	memset(out, 0, sizeof *out);
	for (struct dirent *e; d && (e = readdir(d));) {
		if (e->d_name[0] == '.' || process_alive(h, e->d_name, self) != pid)
			continue;
		if (self && !strcmp(e->d_name, self)) { /* it must not open its own */
			*out = own;
			break;
		}
		host_path(h, path, "procs/%s", e->d_name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || pread(fd, out, sizeof *out, 0) != sizeof *out)
			memset(out, 0, sizeof *out);
		if (fd >= 0)
			close(fd);
		break;
	}
	if (d)
		closedir(d);
}
