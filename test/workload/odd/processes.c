/* Kinds of processes. */
#include "odd.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/xattr.h>

static pid_t only_child;

static void nothing(void) {}

static void look_at_child(void) { child_runs(only_child); }

static void leave_mounts(void)
{
	try(unshare(CLONE_NEWNS));
	must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static void leave_network(void) { try(unshare(CLONE_NEWNET)); }

static void leave_users(void) { try(unshare(CLONE_NEWUSER)); }
static void leave_pids(void)
{
	try(unshare(CLONE_NEWPID));
	if (must(fork()) == 0)
		pause();
}

static void leave_ipc(void) { try(unshare(CLONE_NEWIPC)); }
static void leave_name(void) { try(unshare(CLONE_NEWUTS)); }
static void leave_groups(void) { try(unshare(CLONE_NEWCGROUP)); }
static void leave_time(void) { try(unshare(0x80 /* CLONE_NEWTIME */)); }

/* A child gets a process that is in a session whose leader has ended, and that has no other above it. */
static void adopt_from_session(void)
{
	must(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
	pid_t leader = must(fork());
	if (leader == 0) {
		must(setsid());
		if (must(fork()) == 0)
			for (;;)
				pause();
		_exit(0);
	}
	must(waitpid(leader, NULL, 0));
}

static void child_of_dead_session(void) { only_child = child(adopt_from_session); }

static void child_with_users(void) { only_child = child(leave_users); }
static void child_with_pids(void) { only_child = child(leave_pids); }
static void child_with_ipc(void) { only_child = child(leave_ipc); }
static void child_with_name(void) { only_child = child(leave_name); }
static void child_with_groups(void) { only_child = child(leave_groups); }
static void child_with_time(void) { only_child = child(leave_time); }

static void child_with_mounts(void) { only_child = child(leave_mounts); }
static void child_with_network(void) { only_child = child(leave_network); }

/* The program lies in memory, as that of a self-extracting or protected one. */
static void memfd_program(void)
{
	char path[40], block[1 << 16];
	ssize_t n;
	int from, fd;

	if (getenv("IN_MEMORY"))
		return;
	from = must(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
	fd = must((int)syscall(SYS_memfd_create, "odd", 1 /* MFD_CLOEXEC */));
	while ((n = must(read(from, block, sizeof block))) > 0)
		must(write(fd, block, n));
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	setenv("IN_MEMORY", "yes", 1);
	must(execv(path, arguments));
}

static void look_at_program(void)
{
	char path[100] = "";

	must(readlink("/proc/self/exe", path, sizeof path - 1));
	if (strncmp(path, "/memfd:", 7) != 0)
		wrong("the program is %s", path);
}

static void deadline(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period; /* ns */
	} attr = {.size = 48, .policy = SCHED_DEADLINE, .runtime = 5000000, .deadline = 20000000, .period = 20000000};

	try(syscall(SYS_sched_setattr, 0, &attr, 0));
}

static void look_at_deadline(void)
{
	if (sched_getscheduler(0) != SCHED_DEADLINE)
		wrong("the scheduling policy is %d", sched_getscheduler(0));
}

static void *go_on(void *unused)
{
	(void)unused;
	serve();
}

static void main_ended(void)
{
	pthread_t other;

	must(-pthread_create(&other, NULL, go_on, NULL));
	syscall(SYS_exit, 0);
}

static int wait_for_ever(void *unused)
{
	(void)unused;
	return pause();
}

static void clone_with(int flags)
{
	static char stack[65536];

	must(clone(wait_for_ever, stack + sizeof stack, flags | SIGCHLD, NULL));
}

static void shared_memory_child(void) { clone_with(CLONE_VM); }
static void shared_directory_child(void) { clone_with(CLONE_FS); }
static void shared_files_child(void) { clone_with(CLONE_FILES); }

static void undo(void)
{
	struct sembuf up = {.sem_op = 1, .sem_flg = SEM_UNDO};
	int set = must(semget(IPC_PRIVATE, 1, 0600));

	must(semop(set, &up, 1));
	must(semctl(set, 0, IPC_RMID));
}

/* As taskset, ionice and prctl do it; the second thread differs in all three. */
static volatile int bound_thread;
static int bound_cpu[2];

static void schedule(int as)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(bound_cpu[as], &cpus);
	must(sched_setaffinity(0, sizeof cpus, &cpus));
	must(syscall(SYS_ioprio_set, 1 /* of this thread */, 0, 2 << 13 | (3 + as)));
	must(prctl(PR_SET_TIMERSLACK, 70000 + as));
}

static void *scheduled_thread(void *unused)
{
	(void)unused;
	schedule(1);
	bound_thread = syscall(SYS_gettid);
	pause();
	return NULL;
}

static void scheduled(void)
{
	pthread_t other;
	cpu_set_t cpus;

	must(sched_getaffinity(0, sizeof cpus, &cpus));
	for (int cpu = 0, found = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &cpus))
			bound_cpu[found++] = cpu;
	must(-pthread_create(&other, NULL, scheduled_thread, NULL));
	while (bound_thread == 0)
		usleep(1000);
	schedule(0);
}

static void look_at_schedule(void)
{
	for (int as = 0; as < 2; as++) {
		int tid = as ? bound_thread : getpid(), slack = 0;
		char path[40];
		cpu_set_t cpus;
		FILE *file;

		must(sched_getaffinity(tid, sizeof cpus, &cpus));
		if (CPU_COUNT(&cpus) != 1 || !CPU_ISSET(bound_cpu[as], &cpus))
			wrong("thread %d is not bound to CPU %d", as, bound_cpu[as]);
		if (syscall(SYS_ioprio_get, 1, tid) != (2 << 13 | (3 + as)))
			wrong("the I/O priority of thread %d is %ld", as, syscall(SYS_ioprio_get, 1, tid));
		snprintf(path, sizeof path, "/proc/%d/timerslack_ns", tid);
		file = fopen(path, "r");
		if (!file || fscanf(file, "%d", &slack) != 1 || slack != 70000 + as)
			wrong("the timer slack of thread %d is %d", as, slack);
		fclose(file);
	}
}

static void memory_policy(void)
{
	unsigned long nodes = 1;

	try(syscall(SYS_set_mempolicy, 2 /* MPOL_BIND */, &nodes, 8 * sizeof nodes));
}

static void locked_on_fault(void)
{
	char *at = must(mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	try(mlock2(at, 1 << 20, MLOCK_ONFAULT));
}

static void removed_attribute(void)
{
	int fd = must(open("removed", O_RDWR | O_CREAT, 0600));

	must(fsetxattr(fd, "trusted.odd", "value", 5, 0));
	must(unlink("removed"));
}

const struct kind of_processes[] = {
	{"plain", nothing, NULL},
	{"child-mount-namespace", child_with_mounts, look_at_child},
	{"child-network-namespace", child_with_network, look_at_child},
	{"child-user-namespace", child_with_users, look_at_child},
	{"child-pid-namespace", child_with_pids, look_at_child},
	{"child-ipc-namespace", child_with_ipc, look_at_child},
	{"child-uts-namespace", child_with_name, look_at_child},
	{"child-cgroup-namespace", child_with_groups, look_at_child},
	{"child-time-namespace", child_with_time, look_at_child},
	{"dead-session", child_of_dead_session, look_at_child},
	{"main-thread-ended", main_ended, NULL},
	{"clone-vm", shared_memory_child, NULL},
	{"clone-fs", shared_directory_child, NULL},
	{"clone-files", shared_files_child, NULL},
	{"undo", undo, NULL},
	{"scheduled", scheduled, look_at_schedule},
	{"memory-policy", memory_policy, NULL},
	{"locked-on-fault", locked_on_fault, NULL},
	{"removed-attribute", removed_attribute, NULL},
	{"memfd-program", memfd_program, look_at_program},
	{"deadline", deadline, look_at_deadline},
	{0},
};
