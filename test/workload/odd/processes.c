/* Kinds of processes. */
#include "odd.h"

#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/mount.h>

static pid_t only_child;

static void nothing(void) {}

static void look_at_child(void) { child_runs(only_child); }

static void leave_mounts(void)
{
	try(unshare(CLONE_NEWNS));
	must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static void leave_network(void) { try(unshare(CLONE_NEWNET)); }

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

const struct kind of_processes[] = {
	{"plain", nothing, NULL},
	{"child-mount-namespace", child_with_mounts, look_at_child},
	{"child-network-namespace", child_with_network, look_at_child},
	{"memfd-program", memfd_program, look_at_program},
	{"deadline", deadline, look_at_deadline},
	{0},
};
