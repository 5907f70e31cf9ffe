/*
 * control.c: the controller's side of the checkpoint API. The caller need not
 * have called cuInit. Everything but GetRestoreThreadId is a command to the
 * target's restore thread, and so waits for ever while that thread is stopped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "faults.h"
#include "find.h"
#include "wire.h"

/* An open conversation with one target. */
struct line {
	int pid;
	int pidfd;
	int send, receive;
	struct sim_block block;
};

static void line_close(struct line *l)
{
	if (l->send >= 0)
		close(l->send); /* also gives the line free for the next controller */
	if (l->receive >= 0)
		close(l->receive);
	if (l->pidfd >= 0)
		close(l->pidfd);
}

static bool target_gone(const struct line *l)
{
	struct pollfd p = {.fd = l->pidfd, .events = POLLIN};
	return poll(&p, 1, 0) > 0;
}

/* Is there a live CUDA process under that number? */
static CUresult line_find(struct line *l, int pid)
{
	*l = (struct line){.pid = pid, .pidfd = -1, .send = -1, .receive = -1};
	if (pid <= 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	l->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (l->pidfd < 0 || target_gone(l))
		return CUDA_ERROR_OPERATING_SYSTEM;
	return find_block(pid, &l->block);
}

static int open_end(int pid, int fd, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
	return open(path, flags | O_NONBLOCK | O_CLOEXEC);
}

/*
 * Opens the pipes and takes the line for itself. The lock lies on the command
 * pipe's own inode: nothing to clean up, and a killed controller drops it.
 */
static CUresult line_open(struct line *l)
{
	l->send = open_end(l->pid, l->block.command_write, O_WRONLY);
	l->receive = l->send < 0 ? -1 : open_end(l->pid, l->block.reply_read, O_RDONLY);
	if (l->receive < 0) {
		if (target_gone(l))
			return CUDA_ERROR_OPERATING_SYSTEM;
		sim_log("pid %d: its restore thread's pipes cannot be opened: %s", l->pid, strerror(errno));
		return CUDA_ERROR_UNKNOWN;
	}
	while (flock(l->send, LOCK_EX) < 0)
		if (errno != EINTR)
			return CUDA_ERROR_UNKNOWN;
	struct sim_reply stale; /* to a controller that was killed */
	while (read(l->receive, &stale, sizeof stale) > 0)
		;
	return CUDA_SUCCESS;
}

/* Waits until fd is ready; false when the target died first. */
static bool wait_for(const struct line *l, int fd, short events)
{
	struct pollfd p[2] = {{.fd = fd, .events = events}, {.fd = l->pidfd, .events = POLLIN}};
	for (;;) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return false;
		if (p[0].revents & events)
			return true;
		if (p[1].revents)
			return false;
	}
}

static CUresult exchange(struct line *l, const struct sim_command *c, struct sim_reply *reply)
{
	ssize_t n;
	while ((n = write(l->send, c, sizeof *c)) != (ssize_t)sizeof *c) {
		if (n < 0 && errno == EAGAIN ? !wait_for(l, l->send, POLLOUT) : n >= 0 || errno != EINTR)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (c->plan.kill_controller)
		kill(getpid(), SIGKILL);
	for (;;) {
		if (!wait_for(l, l->receive, POLLIN))
			return CUDA_ERROR_OPERATING_SYSTEM;
		n = read(l->receive, reply, sizeof *reply);
		if (n == (ssize_t)sizeof *reply && reply->magic == SIM_WIRE_MAGIC && reply->seq == c->seq)
			return reply->result;
	}
}

/* What the rules want of the controller itself. */
static void controller_faults(struct fault_plan *plan, enum sim_op op, const struct line *l)
{
	static struct sim_host none;
	struct sim_host h = none;
	const char *root = getenv("CUDASIM_ROOT");
	if (root)
		host_load(&h, root);
	faults_from_env(plan, SIDE_CONTROLLER, op, l->pid, l->block.pid);
	faults_from_file(plan, &h, SIDE_CONTROLLER, op, l->pid, l->block.pid, true);
}

static CUresult command(int pid, struct sim_command *c, uint32_t *state)
{
	struct line l;
	struct sim_reply reply;
	CUresult r = line_find(&l, pid);
	if (!r) {
		const char *root = getenv("CUDASIM_ROOT");
		c->magic = SIM_WIRE_MAGIC;
		c->pid = pid;
		if (getrandom(&c->seq, sizeof c->seq, 0) < 0)
			c->seq = now_ns();
		if (root)
			snprintf(c->root, sizeof c->root, "%s", root);
		controller_faults(&c->plan, (enum sim_op)c->op, &l);
		r = line_open(&l);
	}
	if (!r)
		r = exchange(&l, c, &reply);
	if (!r && state)
		*state = reply.state;
	line_close(&l);
	return r;
}

static bool all_zero(const void *p, size_t n)
{
	for (const unsigned char *b = p; n--; b++)
		if (*b)
			return false;
	return true;
}

__attribute__((constructor)) static void read_rules(void) { faults_init(); }

EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct sim_command c = {.op = OP_STATE};
	uint32_t s;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = command(pid, &c, &s);
	if (!r)
		*state = (CUprocessState)s;
	return r;
}

EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct line l;
	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = line_find(&l, pid);
	if (!r) {
		struct fault_plan plan = {0};
		controller_faults(&plan, OP_TID, &l);
		sleep_ns(plan.delay_ns);
		int found = find_thread(pid, l.block.tid);
		r = plan.has_result ? plan.result : found ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
		if (!r)
			*tid = found;
	}
	line_close(&l);
	return r;
}

EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	struct sim_command c = {.op = OP_LOCK};
	if (args) {
		if (!all_zero(args->reserved, sizeof args->reserved))
			return CUDA_ERROR_INVALID_VALUE;
		c.timeout_ms = args->timeoutMs;
	}
	return command(pid, &c, NULL);
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	struct sim_command c = {.op = OP_CHECKPOINT};
	if (args && !all_zero(args, sizeof *args))
		return CUDA_ERROR_INVALID_VALUE;
	return command(pid, &c, NULL);
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct sim_command c = {.op = OP_RESTORE};
#if SIM_DRIVER < SIM_GPU_PAIRS
	if (args && !all_zero(args, sizeof *args)) /* pairs came with CUDA 13.0 */
		return CUDA_ERROR_INVALID_VALUE;
#else
	if (args) {
		if (!all_zero(args->reserved, sizeof args->reserved))
			return CUDA_ERROR_INVALID_VALUE;
		if (args->gpuPairsCount > SIM_MAX_PAIRS || (args->gpuPairsCount && !args->gpuPairs))
			return CUDA_ERROR_INVALID_VALUE;
		c.npairs = args->gpuPairsCount;
		if (c.npairs)
			memcpy(c.pair, args->gpuPairs, sizeof *c.pair * c.npairs);
	}
#endif
	return command(pid, &c, NULL);
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	struct sim_command c = {.op = OP_UNLOCK};
	if (args && !all_zero(args, sizeof *args))
		return CUDA_ERROR_INVALID_VALUE;
	return command(pid, &c, NULL);
}
