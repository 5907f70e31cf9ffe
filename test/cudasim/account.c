/* account.c: GPU memory accounting between processes. */
#define _GNU_SOURCE
#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_HOLDERS 1024

struct holder {
	char name[SIM_NAME];
	uint64_t bytes;
	uint64_t spare;
};

static unsigned long own_pidns(void)
{
	struct stat st;
	return stat("/proc/self/ns/pid", &st) ? 0 : (unsigned long)st.st_ino;
}

int process_register(const struct sim_host *h, char name[SIM_NAME])
{
	char path[SIM_FULLPATH], locked[SIM_FULLPATH];
	uint32_t salt = 0;
	if (getrandom(&salt, sizeof salt, 0) < 0)
		salt = (uint32_t)time(NULL);
	snprintf(name, SIM_NAME, "%lu-%d-%08x", own_pidns(), getpid(), salt);
	host_path(h, path, "procs/.%s", name);
	host_path(h, locked, "procs/%s", name);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	/* Out of the job's way, and before locking: closing any descriptor of the file drops the lock. */
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
	if (high >= 0) {
		close(fd);
		fd = high;
	}
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	/* Under its name only when it is locked: somebody who lists the processes would take it for dead. */
	if (fcntl(fd, F_SETLK, &lock) < 0 || rename(path, locked) < 0) {
		int err = errno;
		close(fd);
		unlink(path);
		return -err;
	}
	return fd;
}

void process_unregister(const struct sim_host *h, const char *name, int fd)
{
	char path[SIM_FULLPATH];
	host_path(h, path, "procs/%s", name);
	unlink(path);
	if (fd >= 0)
		close(fd);
}

int process_alive(const struct sim_host *h, const char *name, const char *self)
{
	if (self && !strcmp(name, self))
		return getpid();
	char path[SIM_FULLPATH];
	host_path(h, path, "procs/%s", name);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -1 : 0;
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	/* l_pid is -1 for the lock of export_open, which is nobody's. */
	int answer = fcntl(fd, F_GETLK, &lock) < 0 ? 0 : lock.l_type == F_UNLCK ? -1 : lock.l_pid == -1 ? 0 : lock.l_pid;
	close(fd);
	if (answer == -1)
		unlink(path);
	return answer < -1 ? 0 : answer;
}

int export_open(const struct sim_host *h, char name[SIM_NAME])
{
	static _Atomic unsigned number;
	char path[SIM_FULLPATH];
	uint32_t salt = 0;
	if (getrandom(&salt, sizeof salt, 0) < 0)
		salt = (uint32_t)time(NULL);
	snprintf(name, SIM_NAME, "export-%d-%u-%08x", getpid(), number++, salt);
	host_path(h, path, "procs/%s", name);
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * Takes the GPU's book. Bounded, because its holder may have been stopped in
 * the middle: a simulated driver must not hang where the real one would not.
 */
static int book_open(const struct sim_host *h, int gpu)
{
	char path[SIM_FULLPATH];
	host_path(h, path, "gpu/%d/accounts", gpu);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || i >= 20000) {
			int err = errno;
			sim_log("%s: cannot lock: %s", path, strerror(err));
			close(fd);
			return -err;
		}
		nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
	}
	return fd;
}

static void memory_remove(const struct sim_host *h, int gpu, const char *name)
{
	char path[SIM_FULLPATH];
	host_path(h, path, "gpu/%d/%s.mem", gpu, name);
	unlink(path);
}

/* Reads the book without the dead, whose memory goes back to the GPU. */
static int book_read(const struct sim_host *h, int gpu, int fd, const char *self,
		     struct holder *book, int *pids)
{
	ssize_t n = pread(fd, book, sizeof *book * MAX_HOLDERS, 0);
	int live = 0, all = n < 0 ? 0 : (int)((size_t)n / sizeof *book);
	for (int i = 0; i < all; i++) {
		book[i].name[SIM_NAME - 1] = 0;
		int pid = process_alive(h, book[i].name, self);
		if (pid < 0) {
			memory_remove(h, gpu, book[i].name);
			continue;
		}
		if (pids)
			pids[live] = pid;
		book[live++] = book[i];
	}
	return live;
}

static int book_write(int fd, const struct holder *book, int n)
{
	ssize_t size = (ssize_t)(sizeof *book * (size_t)n);
	if (pwrite(fd, book, (size_t)size, 0) != size || ftruncate(fd, size) < 0)
		return -EIO;
	return 0;
}

CUresult account_add(const struct sim_host *h, int gpu, const char *self, const char *name, int64_t delta)
{
	struct holder book[MAX_HOLDERS];
	int fd = book_open(h, gpu);
	if (fd < 0)
		return CUDA_ERROR_UNKNOWN;
	int n = book_read(h, gpu, fd, self, book, NULL), mine = -1;
	uint64_t used = 0;
	for (int i = 0; i < n; i++) {
		used += book[i].bytes;
		if (!strcmp(book[i].name, name))
			mine = i;
	}
	CUresult r = CUDA_SUCCESS;
	if (delta > 0 && ((uint64_t)delta > h->gpu[gpu].bytes || used + (uint64_t)delta > h->gpu[gpu].bytes)) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else if (mine < 0 && n == MAX_HOLDERS) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		if (mine < 0) {
			mine = n++;
			memset(&book[mine], 0, sizeof book[mine]);
			snprintf(book[mine].name, SIM_NAME, "%s", name);
		}
		book[mine].bytes += (uint64_t)delta;
		if (book_write(fd, book, n) < 0)
			r = CUDA_ERROR_UNKNOWN;
	}
	close(fd);
	return r;
}

void account_drop(const struct sim_host *h, int gpu, const char *name)
{
	struct holder book[MAX_HOLDERS];
	memory_remove(h, gpu, name);
	int fd = book_open(h, gpu);
	if (fd < 0)
		return;
	int n = book_read(h, gpu, fd, name, book, NULL);
	for (int i = 0; i < n; i++)
		if (!strcmp(book[i].name, name)) {
			book[i] = book[--n];
			break;
		}
	book_write(fd, book, n);
	close(fd);
}

int account_list(const struct sim_host *h, int gpu, const char *self,
		 uint64_t *used, struct account_use *out, int max)
{
	struct holder book[MAX_HOLDERS];
	int pids[MAX_HOLDERS], count = 0;
	int fd = book_open(h, gpu);
	if (fd < 0)
		return fd;
	int n = book_read(h, gpu, fd, self, book, pids);
	*used = 0;
	for (int i = 0; i < n; i++) {
		*used += book[i].bytes;
		if (!pids[i] || !book[i].bytes)
			continue;
		if (count < max)
			out[count] = (struct account_use){pids[i], book[i].bytes};
		count++;
	}
	book_write(fd, book, n);
	close(fd);
	return count;
}
