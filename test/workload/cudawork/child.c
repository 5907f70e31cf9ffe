#include "child.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "report.h"

#define DEVICE "/dev/nvidia"

static void give_up_descriptors(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	DIR *d = opendir("/proc/self/fd");

	if (null < 0 || !d)
		die(EXIT_USAGE, "--fork-child: no /dev/null or no /proc/self/fd");
	for (struct dirent *e; (e = readdir(d));) {
		char name[4096];
		ssize_t n = readlinkat(dirfd(d), e->d_name, name, sizeof(name) - 1);

		if (n < 0)
			continue;
		name[n] = 0;
		if (strstr(name, DEVICE) && dup3(null, atoi(e->d_name), O_CLOEXEC) < 0)
			die(EXIT_USAGE, "--fork-child: dup3 over %s", name);
	}
	closedir(d);
	close(null);
}

static void give_up_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	struct { unsigned long from, to; } found[512];
	char line[4096];
	int n = 0;

	if (!maps)
		die(EXIT_USAGE, "--fork-child: no /proc/self/maps");
	while (n < 512 && fgets(line, sizeof(line), maps))
		if (strstr(line, DEVICE) && sscanf(line, "%lx-%lx", &found[n].from, &found[n].to) == 2)
			n++;
	fclose(maps);
	for (int i = 0; i < n; i++)
		if (mmap((void *)found[i].from, found[i].to - found[i].from, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
			die(EXIT_USAGE, "--fork-child: mmap over a mapping of the driver");
}

static sigset_t requests(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	return set;
}

void child_block_requests(sigset_t *before)
{
	sigset_t set = requests();

	sigprocmask(SIG_BLOCK, &set, before);
}

void child_wait(pid_t parent)
{
	sigset_t set = requests();

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == parent) {
		int got;

		if (sigwait(&set, &got))
			continue;
		if (got == SIGUSR2)
			exit(0);
		give_up_descriptors();
		give_up_mappings();
	}
	_exit(0);
}
