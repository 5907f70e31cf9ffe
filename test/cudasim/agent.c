/*
 * agent.c: the restore thread, one in every CUDA process. All signals are
 * blocked in it, so it never runs the job's handlers, and but for lock and unlock
 * it takes no lock that another thread of the job may hold: it must work while it
 * is the only thread that runs, the others stopped at any instruction. So no malloc
 * and no stdio.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collective.h"
#include "faults.h"
#include "gpumap.h"
#include "memory.h"
#include "peer.h"
#include "stream.h"
#include "wire.h"

static struct {
	CUuuid captured[SIM_MAX_GPUS]; /* the GPUs visible at checkpoint, in order */
	int captured_gpu[SIM_MAX_GPUS];
	int ncaptured;
	struct staging staging;
	bool lost; /* a restore failed in its middle: never again */
	struct sim_process next; /* what a restore in progress will make of `sim` */
	struct sim_host rules;	 /* whose fault rules hold: the controller's, the target's may be gone */
	uint64_t rules_version;	 /* of those that the command in progress has read, or of earlier ones */
} agent;

/*
 * A second thread of the driver, of which the real one has several. It has a
 * part in the lock and in nothing else here: a lock of a process of which only
 * the restore thread runs waits for it, whatever the timeout.
 */
static struct {
	sem_t asked;
	_Atomic uint32_t questions, answers;
	_Atomic bool runs;
} helper;

static CUprocessState state_now(void) { return (CUprocessState)atomic_load(&sim_block.state); }
static void state_set(CUprocessState s) { atomic_store(&sim_block.state, (uint32_t)s); }

static int await_rules(void *unused)
{
	(void)unused;
	while (faults_version(&agent.rules) == agent.rules_version)
		sleep_ns(10000000);
	return 0;
}

/* In the kernel until a child ends, as at vfork. */
static void stick(void)
{
	static char stack[64 << 10] __attribute__((aligned(16)));
	int child = clone(await_rules, stack + sizeof stack, CLONE_VM | CLONE_VFORK, NULL);
	waitpid(child, NULL, __WALL);
}

/* The point in the middle of an operation where scripted faults strike. */
static void midway(const struct fault_plan *plan)
{
	sleep_ns(plan->delay_ns);
	if (plan->crash)
		kill(getpid(), SIGKILL);
	if (plan->hang)
		await_rules(NULL);
	if (plan->stick)
		stick();
}

/* The driver's lock needs another thread of its own. */
static void ask_helper(void)
{
	uint32_t question = atomic_fetch_add(&helper.questions, 1) + 1;
	sem_post(&helper.asked);
	while ((int32_t)(atomic_load(&helper.answers) - question) < 0)
		sleep_ns(100000);
}

static CUresult lock(const struct sim_command *c, const struct fault_plan *plan)
{
	if (state_now() != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (atomic_load(&sim.profiled))
		return CUDA_ERROR_NOT_SUPPORTED;
	ask_helper();
	uint64_t deadline = now_ns() + (uint64_t)c->timeout_ms * 1000000u;
	gate_close();
	midway(plan);
	ask_helper();
	while (!gate_idle() || !streams_idle() || !driver_idle()) {
		if (c->timeout_ms && now_ns() >= deadline) {
			gate_open();
			return CUDA_ERROR_NOT_READY;
		}
		sleep_ns(200000);
	}
	state_set(CU_PROCESS_STATE_LOCKED);
	return CUDA_SUCCESS;
}

static CUresult unlock(const struct fault_plan *plan)
{
	if (state_now() != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	midway(plan);
	driver_enter();
	state_set(CU_PROCESS_STATE_RUNNING);
	gate_open();
	driver_leave();
	return CUDA_SUCCESS;
}

static void drop_accounts(const struct sim_process *p)
{
	for (int i = 0; i < p->ndevices; i++)
		if (p->device[i].gpu >= 0)
			account_drop(&p->host, p->device[i].gpu, p->name);
}

/* As the driver does: the memory comes from the program's allocator, whose lock another thread may hold. */
static void allocate(void)
{
	void *volatile p = malloc(64 << 10);
	free(p);
}

/* As the driver does on this thread, traced on 580.159.04: a filter of the job's may end it for one of these. */
static void call_as_the_driver(void)
{
	int pipes[2], event = eventfd(0, EFD_CLOEXEC);

	if (!pipe2(pipes, O_CLOEXEC)) {
		dup3(pipes[0], pipes[1], O_CLOEXEC);
		dup2(pipes[0], event);
		close(pipes[0]);
		close(pipes[1]);
	}
	close(event);
	access("", F_OK);
	if (!symlink("", "") || !unlink("")) /* calls that do nothing */
		abort();
	syscall(SYS_getpid);
	sched_yield();
}

static CUresult checkpoint(const struct fault_plan *plan)
{
	if (state_now() != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (memory_has_managed())
		return CUDA_ERROR_NOT_SUPPORTED;
	hazard_set(true);
	call_as_the_driver();
	CUresult r = memory_stage(&agent.staging);
	if (r) {
		hazard_set(false);
		return r;
	}
	allocate();
	midway(plan);
	uint32_t visible = host_visible(&sim.host);
	agent.ncaptured = 0;
	for (int i = 0; i < sim.host.ngpus; i++)
		if (visible & 1u << i) {
			agent.captured_gpu[agent.ncaptured] = i;
			agent.captured[agent.ncaptured++] = sim.host.gpu[i].uuid;
		}
	drop_accounts(&sim);
	sim_release(&sim);
	state_set(CU_PROCESS_STATE_CHECKPOINTED);
	return CUDA_SUCCESS;
}

/* Moves the devices of agent.next to where the map sends their GPUs. */
static CUresult move_devices(const int *target)
{
	for (int d = 0; d < agent.next.ndevices; d++) {
		struct sim_device *device = &agent.next.device[d];
		int to = -1;
		for (int i = 0; i < agent.ncaptured; i++)
			if (agent.captured_gpu[i] == device->gpu)
				to = target[i];
		if (to < 0 && !device->bytes) {
			device->gpu = -1; /* was hidden and unused at checkpoint */
			continue;
		}
		if (to < 0) /* hidden at checkpoint although in use: only the same one will do */
			to = host_find(&agent.next.host, &device->uuid);
		if (to < 0)
			return CUDA_ERROR_NOT_SUPPORTED;
		device->gpu = to;
		device->uuid = agent.next.host.gpu[to].uuid;
	}
	return CUDA_SUCCESS;
}

/* Takes the memory on the new GPUs and fills it. */
static CUresult refill(bool lose)
{
	CUresult r = lose ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	for (int i = 0; i < agent.next.ndevices && !r; i++) {
		struct sim_device *d = &agent.next.device[i];
		if (d->bytes)
			r = account_add(&agent.next.host, d->gpu, agent.next.name, agent.next.name, (int64_t)d->bytes);
	}
	if (r == CUDA_ERROR_OUT_OF_MEMORY)
		agent.lost = true;
	return r ? r : memory_unstage(&agent.staging, &agent.next);
}

static CUresult restore(const struct sim_command *c, const struct fault_plan *plan)
{
	if (state_now() != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	agent.next = sim;
	if (c->root[0]) {
		int err = host_load(&agent.next.host, c->root);
		if (err) {
			sim_log("restore: %s is not a simulated host here: %s", c->root, strerror(-err));
			return CUDA_ERROR_UNKNOWN;
		}
	}
	if (strcmp(agent.next.host.driver, sim.host.driver)) {
		sim_log("restore: checkpointed by driver %s, this host has %s", sim.host.driver, agent.next.host.driver);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	int target[SIM_MAX_GPUS];
	CUresult r = gpumap_resolve(agent.captured, agent.ncaptured, &agent.next.host,
				    host_visible(&agent.next.host), c->pair, c->npairs, target);
	if (!r && agent.lost) /* asked after the map, as measured */
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r)
		return r;
	r = peers_restorable();
	if (r)
		agent.lost = true; /* what the driver cannot make again: the process is lost */
	else
		r = move_devices(target);
	if (r)
		return r;
	if (sim_hold(&agent.next) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	r = refill(plan->lose);
	if (r) {
		drop_accounts(&agent.next);
		sim_release(&agent.next);
		return r;
	}
	midway(plan);
	allocate();
	staging_free(&agent.staging);
	sim = agent.next;
	peers_restored();
	collective_rejoin();
	state_set(CU_PROCESS_STATE_LOCKED);
	hazard_set(false);
	return CUDA_SUCCESS;
}

static CUresult perform(const struct sim_command *c, const struct fault_plan *plan)
{
	switch (c->op) {
	case OP_STATE:
		midway(plan);
		return CUDA_SUCCESS;
	case OP_LOCK:
		return lock(c, plan);
	case OP_CHECKPOINT:
		return checkpoint(plan);
	case OP_RESTORE:
		return restore(c, plan);
	case OP_UNLOCK:
		return unlock(plan);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult serve(const struct sim_command *c)
{
	struct fault_plan plan = c->plan;
	if (!c->root[0] || host_load(&agent.rules, c->root))
		agent.rules = sim.host;
	agent.rules_version = faults_version(&agent.rules);
	faults_from_file(&plan, &agent.rules, SIDE_TARGET, (enum sim_op)c->op, c->pid, getpid(), false);
	faults_from_env(&plan, SIDE_TARGET, (enum sim_op)c->op, c->pid, getpid());
	if (plan.has_result && !plan.after) {
		midway(&plan);
		return plan.result;
	}
	CUresult r = perform(c, &plan);
	return plan.has_result ? plan.result : r;
}

static void *helper_thread(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, SIM_EVENT_THREAD);
	atomic_store(&helper.runs, true);
	for (;;) {
		while (sem_wait(&helper.asked) < 0)
			;
		atomic_fetch_add(&helper.answers, 1);
	}
	return NULL;
}

static void *restore_thread(void *unused)
{
	(void)unused;
	static struct sim_command c;
	prctl(PR_SET_NAME, "cuda00001400006");
	sim_block.tid = (int32_t)syscall(SYS_gettid);
	for (;;) {
		ssize_t n = read(sim_block.command_read, &c, sizeof c);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) /* the job closed the descriptor: nobody can reach this thread again */
			return NULL;
		if (n != (ssize_t)sizeof c || c.magic != SIM_WIRE_MAGIC)
			continue;
		struct sim_reply reply = {.magic = SIM_WIRE_MAGIC, .seq = c.seq};
		reply.result = serve(&c);
		reply.state = (uint32_t)state_now();
		/* Does not block: a full pipe holds replies that nobody waits for. */
		while (write(sim_block.reply_write, &reply, sizeof reply) < 0 && errno == EINTR)
			;
	}
}

/* A pipe on high descriptors, both ends kept by this process itself. */
static int make_pipe(int32_t *read_end, int32_t *write_end)
{
	int p[2];
	if (pipe2(p, O_CLOEXEC) < 0)
		return -errno;
	int32_t *out[2] = {read_end, write_end};
	for (int i = 0; i < 2; i++) {
		int high = fcntl(p[i], F_DUPFD_CLOEXEC, 200);
		*out[i] = high < 0 ? p[i] : high;
		if (high >= 0)
			close(p[i]);
	}
	return 0;
}

int agent_start(void)
{
	if (make_pipe(&sim_block.command_read, &sim_block.command_write) ||
	    make_pipe(&sim_block.reply_read, &sim_block.reply_write))
		return -EMFILE;
	fcntl(sim_block.reply_write, F_SETFL, O_NONBLOCK);
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 4 << 20); /* the thread-local memory of a program is on it */
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_t thread;
	sim_block.tid = 0;
	atomic_store(&helper.runs, false);
	sem_init(&helper.asked, 0, 0);
	int err = pthread_create(&thread, &attr, helper_thread, NULL);
	if (!err)
		err = pthread_create(&thread, &attr, restore_thread, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	/* A filter of the program's may be put on all threads from here on. */
	while (!err && !(*(volatile int32_t *)&sim_block.tid && atomic_load(&helper.runs)))
		sleep_ns(50000);
	return -err;
}
