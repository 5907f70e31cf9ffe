#include "group.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"
#include "mesh.h"
#include "report.h"
#include "role.h"
#include "worker.h"

struct group {
	const struct options *options;
	int size;
	pid_t pids[MAX_PROCS]; /* 0: ended */
};

static enum part part_of(const struct options *o, int rank)
{
	if (o->ipc)
		return rank ? IMPORTER : EXPORTER;
	return o->ranks ? RANK : MEMBER;
}

/* Unlikely to meet another group's number on the same simulated host. */
static uint64_t group_number(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)getpid() << 40 ^ (uint64_t)now.tv_sec << 30 ^ now.tv_nsec;
}

static void child(const struct group *g, const struct role *r, pid_t parent)
{
	struct options o = *g->options;

	/* No rank outlives the tree. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_USAGE);
	/* Both sides of an IPC mapping are on one GPU. */
	o.gpus[0] = o.gpus[o.ipc ? 0 : r->rank % o.ngpus];
	o.ngpus = 1;
	exit(worker_run(&o, r));
}

static void start(struct group *g)
{
	const struct options *o = g->options;
	pid_t self = getpid();
	uint64_t number = group_number();
	void *meeting = NULL;

	if (o->ranks && (!o->mesh || o->ahead))
		meeting = mmap(NULL, MEETING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (meeting == MAP_FAILED)
		die(EXIT_USAGE, "mmap: %s", strerror(errno));
	dir_make(o->dir);
	file_remove(o->dir, IPC_HANDLE);
	file_remove(o->dir, IPC_UNMAPPED);
	file_remove(o->dir, IPC_SHARE);
	file_remove(o->dir, IPC_SHARED);
	mesh_clear(o->dir, g->size);
	for (int i = 0; i < g->size; i++) {
		struct role r = {.part = part_of(o, i), .rank = i, .size = g->size, .group = number, .ipc_vmm = o->ipc_vmm, .ipc_later = o->ipc_later, .meeting = meeting, .ahead = o->ahead ? AHEAD_MAX : 0};
		char name[32];

		snprintf(name, sizeof(name), "rank-%d", i);
		snprintf(r.common, sizeof(r.common), "%s", o->dir);
		path_join(r.dir, o->dir, name);
		dir_make(r.dir);
		g->pids[i] = fork();
		if (g->pids[i] < 0)
			die(EXIT_USAGE, "cannot fork process %d of %d: %s", i, g->size, strerror(errno));
		if (!g->pids[i])
			child(g, &r, self);
	}
}

static void end_others(struct group *g)
{
	for (int i = 0; i < g->size; i++)
		if (g->pids[i])
			kill(g->pids[i], SIGKILL);
}

/* Exit status of one process that ended, as a shell would put it. */
static int describe(int rank, pid_t pid, int status)
{
	if (WIFSIGNALED(status)) {
		say("process %d (pid %d) was killed by signal %d (%s)", rank, (int)pid,
		    WTERMSIG(status), strsignal(WTERMSIG(status)));
		return 128 + WTERMSIG(status);
	}
	if (WEXITSTATUS(status))
		say("process %d (pid %d) ended with status %d", rank, (int)pid, WEXITSTATUS(status));
	return WEXITSTATUS(status);
}

int group_run(const struct options *o)
{
	struct group g = {.options = o, .size = o->ipc ? 2 : o->ranks ? o->ranks : o->procs};
	/* Members of --procs do not need one another; the others would wait for ever. */
	int together = o->ipc || o->ranks;
	int worst = EXIT_GOOD, ending = 0, status;
	pid_t pid;

	start(&g);
	while ((pid = waitpid(-1, &status, 0)) > 0 || errno == EINTR) {
		int rank, code;

		for (rank = 0; rank < g.size && g.pids[rank] != pid; rank++)
			;
		if (pid <= 0 || rank == g.size)
			continue;
		g.pids[rank] = 0;
		if (ending)
			continue; /* our own SIGKILL: the first failure is the one that counts */
		code = describe(rank, pid, status);
		if (code > worst)
			worst = code;
		if (together && code > EXIT_BAD) {
			say("ending the other processes: they depend on it");
			ending = 1;
			end_others(&g);
		}
	}
	return worst;
}
