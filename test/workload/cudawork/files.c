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

int file_write(const char *dir, const char *name, const void *data, size_t len)
{
	char path[PATH_LEN], tmp[PATH_LEN];
	int fd, err;

	path_join(path, dir, name);
	if (snprintf(tmp, sizeof(tmp), "%s.tmp", path) >= (int)sizeof(tmp)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	err = write_all(fd, data, len) ? errno : 0;
	if (close(fd) && !err)
		err = errno;
	if (!err && rename(tmp, path))
		err = errno;
	if (err) {
		unlink(tmp);
		errno = err;
		return -1;
	}
	return 0;
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
