#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "report.h"

void path_join(char *out, const char *dir, const char *name)
{
	if (snprintf(out, PATH_LEN, "%s/%s", dir, name) >= PATH_LEN)
		die(EXIT_USAGE, "%.80s…/%s: path too long", dir, name);
}

void dir_make(const char *dir)
{
	if (mkdir(dir, 0777) && errno != EEXIST)
		die(EXIT_USAGE, "cannot make the directory %s: %s", dir, strerror(errno));
}

int file_exists(const char *dir, const char *name)
{
	char path[PATH_LEN];

	path_join(path, dir, name);
	return access(path, F_OK) == 0;
}

void file_remove(const char *dir, const char *name)
{
	char path[PATH_LEN];

	path_join(path, dir, name);
	if (unlink(path) && errno != ENOENT)
		say("cannot remove %s: %s", path, strerror(errno));
}

static int write_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		data += n;
		len -= n;
	}
	return 0;
}

/* Writes path, which is cut to nothing first if flags say so: 0, or -1 with errno. */
static int write_path(const char *path, int flags, const char *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666), err;

	if (fd < 0)
		return -1;
	err = write_all(fd, data, len) ? errno : 0;
	if (close(fd) && !err)
		err = errno;
	errno = err;
	return err ? -1 : 0;
}

/* Renames tmp to path, or removes it: 0, or -1 with errno. */
static int put(const char *tmp, const char *path, int made)
{
	int err;

	if (made && !rename(tmp, path))
		return 0;
	err = errno;
	unlink(tmp);
	errno = err;
	return -1;
}

static int path_with(char *out, const char *path, const char *suffix)
{
	if (snprintf(out, PATH_LEN, "%s%s", path, suffix) < PATH_LEN)
		return 0;
	errno = ENAMETOOLONG;
	return -1;
}

int file_write(const char *dir, const char *name, const void *data, size_t len)
{
	char path[PATH_LEN], tmp[PATH_LEN];

	path_join(path, dir, name);
	if (path_with(tmp, path, ".tmp"))
		return -1;
	return put(tmp, path, !write_path(tmp, O_TRUNC, data, len));
}

int file_update(const char *dir, const char *name, const void *data, size_t len, unsigned turn)
{
	const char *suffix = turn % 2 ? ".1" : ".0";
	char path[PATH_LEN], tmp[PATH_LEN], version[PATH_LEN];

	path_join(path, dir, name);
	if (path_with(tmp, path, ".tmp") || path_with(version, path, suffix) || write_path(version, 0, data, len))
		return -1;
	/*
	 * A process that was restored in here may find the link that it was about to make, or miss the one that
	 * it had made: its files are as it left them later.
	 */
	for (int tries = 0; tries < 3; tries++) {
		if (!unlink(tmp) || errno == ENOENT)
			if (!symlink(strrchr(version, '/') + 1, tmp) && !rename(tmp, path))
				return 0;
		if (errno != EEXIST && errno != ENOENT)
			break;
	}
	return put(tmp, path, 0);
}

int file_read(const char *dir, const char *name, void *data, size_t len)
{
	char path[PATH_LEN];
	size_t got = 0;
	int fd;

	path_join(path, dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	while (got < len) {
		ssize_t n = read(fd, (char *)data + got, len - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			int err = n ? errno : ENODATA;

			close(fd);
			errno = err;
			return -1;
		}
		got += n;
	}
	close(fd);
	return 0;
}

void sleep_ms(long ms)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&ts, NULL);
}
