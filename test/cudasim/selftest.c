/*
 * selftest.c: proves the mechanics of the simulated driver that decide the
 * protocol and are awkward to show from elsewhere. Run by `make check`:
 *   selftest CUDASIM_RUN
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) F(cuCtxSetCurrent, (CUcontext)) \
	F(cuMemAlloc_v2, (CUdeviceptr *, size_t)) F(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned)) \
	F(cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t)) F(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
	F(cuStreamSynchronize, (CUstream)) F(cuModuleLoadData, (CUmodule *, const void *)) \
	F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
	F(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	F(cuCheckpointProcessGetState, (int, CUprocessState *)) F(cuCheckpointProcessGetRestoreThreadId, (int, int *)) \
	F(cuCheckpointProcessLock, (int, CUcheckpointLockArgs *)) F(cuCheckpointProcessCheckpoint, (int, void *)) \
	F(cuCheckpointProcessRestore, (int, CUcheckpointRestoreArgs *)) F(cuCheckpointProcessUnlock, (int, void *))
#define DECLARE(name, args) static CUresult (*name) args;
FUNCTIONS(DECLARE)

static int failures;
#define CHECK(what, want) do { long got_ = (long)(what); if (got_ != (long)(want)) { failures++; \
	printf("    line %d: %s is %ld, want %ld\n", __LINE__, #what, got_, (long)(want)); } } while (0)
#define MUST(call) do { int r_ = (call); if (r_) { fprintf(stderr, "%s: %d\n", #call, r_); _exit(9); } } while (0)

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }

enum work { SYNC_SPINNER, LAUNCHER, BUSY, MANAGED, FORKER };
#define WORDS (1u << 20)

/* The life of a simulated CUDA process; reports on `ready` when it is going. */
static void target(enum work work, int ready)
{
	static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry cw_spin(.param .u64 n) { ret; }\n";
	CUcontext c;
	CUdeviceptr p;
	CUmodule m;
	CUfunction spin;
	uint32_t word;
	uint64_t busy_ns = 1000000000;
	void *params[] = {&busy_ns};
	MUST(cuInit(0));
	MUST(cuDevicePrimaryCtxRetain(&c, 0));
	MUST(cuCtxSetCurrent(c));
	MUST(work == MANAGED ? cuMemAllocManaged(&p, WORDS * 4, 1) : cuMemAlloc_v2(&p, WORDS * 4));
	MUST(cuMemsetD32_v2(p, 0x5eed, WORDS));
	MUST(cuModuleLoadData(&m, ptx));
	MUST(cuModuleGetFunction(&spin, m, "cw_spin"));
	pid_t child = 0;
	if (work == FORKER && !(child = fork()))
		for (;;)
			pause();
	if (work == BUSY)
		MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	MUST(write(ready, &child, sizeof child) != sizeof child);
	for (;;) {
		if (work != SYNC_SPINNER && work != BUSY) {
			MUST(cuMemcpyDtoH_v2(&word, p + WORDS * 4 - 4, 4));
			MUST(word != 0x5eed);
		}
		MUST(cuStreamSynchronize(NULL));
	}
}

static pid_t start(enum work work, pid_t *child)
{
	int p[2];
	pid_t answer = 0, pid;
	MUST(pipe(p));
	fflush(NULL);
	if (!(pid = fork())) {
		close(p[0]);
		target(work, p[1]);
	}
	close(p[1]);
	if (read(p[0], &answer, sizeof answer) != sizeof answer)
		printf("    the target did not start\n"), failures++;
	close(p[0]);
	if (child)
		*child = answer;
	pause_ms(20);
	return pid;
}

/* Ends it; 0 if it still lived, else the signal that had ended it, or -1. */
static int end(pid_t pid)
{
	int status;
	if (waitpid(pid, &status, WNOHANG) == pid)
		return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return 0;
}

/* Waits until it has ended by itself, for some seconds at the most. */
static void wait_end(pid_t pid)
{
	siginfo_t info = {0};
	for (int i = 0; i < 500 && !waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) && !info.si_pid; i++)
		pause_ms(10);
}

static int state(pid_t pid)
{
	CUprocessState s;
	int r = cuCheckpointProcessGetState(pid, &s);
	return r ? 1000 + r : (int)s;
}

static int lock(pid_t pid, unsigned ms) { return cuCheckpointProcessLock(pid, &(CUcheckpointLockArgs){.timeoutMs = ms}); }

static void rule(const char *text)
{
	char path[1100];
	snprintf(path, sizeof path, "%s/faults", getenv("CUDASIM_ROOT"));
	FILE *f = fopen(path, "w");
	MUST(!f || fputs(text, f) < 0 || fclose(f));
}

static bool all_stopped(pid_t pid)
{
	char command[128]; /* any thread that is not in state T or t */
	snprintf(command, sizeof command, "! grep -hq '^State:[[:space:]]*[^Tt[:space:]]' /proc/%d/task/*/status", pid);
	return system(command) == 0;
}

static void stop(pid_t pid)
{
	kill(pid, SIGSTOP);
	for (int i = 0; i < 2000 && !all_stopped(pid); i++)
		pause_ms(5);
}

static void synchronizing_dies(void)
{
	pid_t pid = start(SYNC_SPINNER, NULL);
	CHECK(lock(pid, 1000), 0);
	CHECK(state(pid), CU_PROCESS_STATE_LOCKED);
	int r = cuCheckpointProcessCheckpoint(pid, NULL); /* 304 if it dies first */
	CHECK(r == 0 || r == CUDA_ERROR_OPERATING_SYSTEM, 1);
	wait_end(pid);
	CHECK(end(pid), SIGSEGV);
}

static void launching_is_held(void)
{
	pid_t pid = start(LAUNCHER, NULL);
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	CHECK(lock(pid, 1000), 0);
	CHECK(lock(pid, 1000), CUDA_ERROR_ILLEGAL_STATE);
	pause_ms(20);
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), 0);
	pause_ms(20);
	CHECK(cuCheckpointProcessUnlock(pid, NULL), CUDA_ERROR_ILLEGAL_STATE);
	CHECK(cuCheckpointProcessRestore(pid, NULL), 0);
	CHECK(cuCheckpointProcessUnlock(pid, NULL), 0);
	pause_ms(50);
	CHECK(end(pid), 0);
}

static void *ask_state(void *pid)
{
	return (void *)(intptr_t)state((pid_t)(intptr_t)pid);
}

static void stopped_blocks(void)
{
	pid_t pid = start(LAUNCHER, NULL);
	pthread_t asker;
	void *answer = NULL;
	int tid;
	stop(pid);
	CHECK(cuCheckpointProcessGetRestoreThreadId(pid, &tid), 0);
	pthread_create(&asker, NULL, ask_state, (void *)(intptr_t)pid);
	pause_ms(200);
	int early = pthread_tryjoin_np(asker, &answer);
	CHECK(early, EBUSY);
	kill(pid, SIGCONT);
	if (early)
		pthread_join(asker, &answer);
	CHECK((intptr_t)answer, CU_PROCESS_STATE_RUNNING);
	CHECK(end(pid), 0);
}

static void restore_thread_alone(void)
{
	pid_t pid = start(SYNC_SPINNER, NULL);
	int tid = 0, status = 0;
	CHECK(lock(pid, 1000), 0);
	stop(pid);
	CHECK(cuCheckpointProcessGetRestoreThreadId(pid, &tid), 0);
	CHECK(ptrace(PTRACE_SEIZE, tid, 0, 0), 0);
	CHECK(waitpid(tid, &status, __WALL), tid);
	CHECK(status, 0x80137f);
	CHECK(ptrace(PTRACE_CONT, tid, 0, 0), 0);
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), 0);
	CHECK(state(pid), CU_PROCESS_STATE_CHECKPOINTED);
	pause_ms(20);
	CHECK(cuCheckpointProcessRestore(pid, NULL), 0);
	CHECK(ptrace(PTRACE_INTERRUPT, tid, 0, 0), 0);
	CHECK(waitpid(tid, &status, __WALL), tid);
	CHECK(ptrace(PTRACE_DETACH, tid, 0, 0), 0);
	pause_ms(20);
	CHECK(all_stopped(pid), 1);
	kill(pid, SIGCONT);
	/* Not before that: the unlock waits for a lock that a stopped thread may hold. */
	CHECK(cuCheckpointProcessUnlock(pid, NULL), 0);
	pause_ms(50);
	CHECK(state(pid), CU_PROCESS_STATE_RUNNING);
	CHECK(end(pid), 0);
}

static void work_in_flight(void)
{
	pid_t pid = start(BUSY, NULL);
	CHECK(lock(pid, 50), CUDA_ERROR_NOT_READY);
	CHECK(state(pid), CU_PROCESS_STATE_RUNNING);
	CHECK(lock(pid, 0), 0);
	CHECK(cuCheckpointProcessUnlock(pid, NULL), 0);
	CHECK(end(pid), 0);
}

static void killed_controller(void)
{
	pid_t pid = start(LAUNCHER, NULL);
	rule("checkpoint delay 1s\nrestore delay 1s\n");
	CHECK(lock(pid, 1000), 0);
	for (int i = 0; i < 2; i++) {
		pid_t controller = fork();
		if (!controller)
			_exit(i ? cuCheckpointProcessRestore(pid, NULL) : cuCheckpointProcessCheckpoint(pid, NULL));
		pause_ms(300);
		CHECK(end(controller), 0);
		CHECK(state(pid), i ? CU_PROCESS_STATE_LOCKED : CU_PROCESS_STATE_CHECKPOINTED);
	}
	rule("checkpoint crash\n");
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), CUDA_ERROR_OPERATING_SYSTEM);
	rule("");
	CHECK(end(pid), SIGKILL);
}

static void refusals(void)
{
	pid_t child, pid = start(FORKER, &child);
	CHECK(state(child), 1000 + CUDA_ERROR_NOT_INITIALIZED);
	CHECK(state(getpid()), 1000 + CUDA_ERROR_NOT_INITIALIZED);
	CHECK(state(0), 1000 + CUDA_ERROR_OPERATING_SYSTEM);
	kill(child, SIGKILL);
	rule("restore lose\n");
	CHECK(lock(pid, 1000), 0);
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), 0);
	CHECK(cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	rule("");
	CHECK(cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(state(pid), CU_PROCESS_STATE_CHECKPOINTED);
	CHECK(end(pid), 0);
	CHECK(state(pid), 1000 + CUDA_ERROR_OPERATING_SYSTEM);

	pid = start(MANAGED, NULL);
	CHECK(lock(pid, 1000), 0);
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(state(pid), CU_PROCESS_STATE_LOCKED);
	CHECK(cuCheckpointProcessUnlock(pid, NULL), 0);
	pause_ms(20);
	CHECK(end(pid), 0);
}

static void fewer_visible(void)
{
	char node[1100], away[1120];
	snprintf(node, sizeof node, "%s/dev/nvidia1", getenv("CUDASIM_ROOT"));
	snprintf(away, sizeof away, "%s.away", node);
	pid_t pid = start(LAUNCHER, NULL);
	CHECK(lock(pid, 1000), 0);
	CHECK(cuCheckpointProcessCheckpoint(pid, NULL), 0);
	CHECK(rename(node, away), 0);
	CHECK(cuCheckpointProcessRestore(pid, NULL), CUDA_ERROR_NOT_SUPPORTED);
	CHECK(rename(away, node), 0);
	CUcheckpointGpuPair unknown = {{{1}}, {{2}}};
	CUcheckpointRestoreArgs bad = {.gpuPairs = &unknown, .gpuPairsCount = 1};
	CHECK(cuCheckpointProcessRestore(pid, &bad), CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCheckpointProcessRestore(pid, NULL), 0);
	CHECK(cuCheckpointProcessUnlock(pid, NULL), 0);
	CHECK(end(pid), 0);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!getenv("CUDASIM_SELFTEST")) {
		if (argc != 2) {
			fprintf(stderr, "usage: selftest CUDASIM_RUN\n");
			return 2;
		}
		char root[PATH_MAX];
		const char *tmp = getenv("TMPDIR");
		snprintf(root, sizeof root, "%s/cudasim-selftest-XXXXXX", tmp && *tmp ? tmp : "/tmp");
		MUST(!mkdtemp(root));
		setenv("CUDASIM_SELFTEST", root, 1);
		pid_t pid = fork();
		if (!pid) {
			execl(argv[1], argv[1], "--root", root, "--gpus", "2", "--mib-per-gpu", "64", "--", argv[0], NULL);
			_exit(127);
		}
		int status = 0;
		char remove[PATH_MAX + sizeof "rm -rf ''"];
		waitpid(pid, &status, 0);
		snprintf(remove, sizeof remove, "rm -rf '%s'", root);
		return system(remove) || status ? 1 : 0;
	}
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
#define LOAD(name, args) MUST(!(name = (CUresult (*) args)dlsym(library, #name)));
	FUNCTIONS(LOAD)
	static const struct { const char *name; void (*run)(void); } tests[] = {
		{"a synchronizing thread dies when its process is checkpointed", synchronizing_dies},
		{"a launching thread is held by the lock and survives", launching_is_held},
		{"calls to a stopped target block, the thread id does not", stopped_blocks},
		{"the restore thread serves alone while the others are stopped", restore_thread_alone},
		{"work in flight: 600 after the timeout, else the lock waits", work_in_flight},
		{"what a killed controller began is completed; a crash gives 304", killed_controller},
		{"fork, out of memory, managed memory", refusals},
		{"fewer visible GPUs: 801, then a right restore succeeds", fewer_visible},
	};
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
		int before = failures;
		tests[i].run();
		printf("%s %s\n", failures == before ? "ok  " : "FAIL", tests[i].name);
	}
	return failures != 0;
}
