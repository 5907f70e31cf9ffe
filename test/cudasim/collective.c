/* collective.c: ranks that wait for each other through files of the host. */
#define _GNU_SOURCE
#include "collective.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct mark {
	uint64_t generation;
	char name[SIM_NAME];
	uint64_t again; /* equal to generation unless the reader came in between */
};

#define MEMBERSHIPS 64
static struct membership {
	uint64_t group, generation;
	uint32_t rank;
} membership[MEMBERSHIPS];
static int memberships;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static CUresult write_mark(const struct membership *m)
{
	char path[SIM_FULLPATH];
	host_path(&sim.host, path, "collective/%016llx", (unsigned long long)m->group);
	mkdir(path, 0700);
	host_path(&sim.host, path, "collective/%016llx/%u", (unsigned long long)m->group, m->rank);
	struct mark mark = {.generation = m->generation, .again = m->generation};
	memcpy(mark.name, sim.name, sizeof mark.name);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	ssize_t n = fd < 0 ? -1 : pwrite(fd, &mark, sizeof mark, 0);
	if (n != sizeof mark)
		sim_log("collective %s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return n == sizeof mark ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult collective_arrive(uint64_t group, uint32_t rank, uint64_t generation)
{
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&mutex);
	int i = 0;
	while (i < memberships && (membership[i].group != group || membership[i].rank != rank))
		i++;
	if (i < MEMBERSHIPS) {
		membership[i] = (struct membership){group, generation, rank};
		r = write_mark(&membership[i]);
		if (i == memberships)
			memberships++;
	}
	pthread_mutex_unlock(&mutex);
	return r;
}

static bool arrived(uint64_t group, uint32_t rank, uint64_t generation)
{
	char path[SIM_FULLPATH];
	struct mark mark;
	host_path(&sim.host, path, "collective/%016llx/%u", (unsigned long long)group, rank);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = pread(fd, &mark, sizeof mark, 0);
	close(fd);
	if (n != sizeof mark || mark.generation != mark.again || mark.generation < generation)
		return false;
	/*
	 * A rank that has ended, or is checkpointed, counts if it went little
	 * further: what is far ahead was left by an earlier life of the group.
	 */
	mark.name[SIM_NAME - 1] = 0;
	return mark.generation <= generation + 8 || process_alive(&sim.host, mark.name, sim.name) >= 0;
}

bool collective_done(uint64_t group, uint32_t size, uint64_t generation)
{
	for (uint32_t rank = 0; rank < size; rank++)
		if (!arrived(group, rank, generation))
			return false;
	return true;
}

void collective_rejoin(void)
{
	/* No mutex: nobody is inside the gate while the process is checkpointed. */
	for (int i = 0; i < memberships; i++)
		write_mark(&membership[i]);
}
