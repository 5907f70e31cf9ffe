/* What has a name on this host that others could take away or change: a copy of the process must not. */
#include "odd.h"

#include <pty.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int fifo, locked, removed, changes;
static char *shared;
static struct stat socket_was, fifo_was, locked_was;

static int make(const char *name, const char *text)
{
	int fd = must(open(name, O_RDWR | O_CREAT | O_TRUNC, 0600));

	must(write(fd, text, strlen(text)));
	return fd;
}

static void names(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "watched/socket"};
	struct flock whole = {.l_type = F_WRLCK};
	int master, slave, listens = must(socket(AF_UNIX, SOCK_STREAM, 0));

	must(mkdir("watched", 0700));
	must(bind(listens, (struct sockaddr *)&address, sizeof address));
	must(listen(listens, 1));
	must(mkfifo("watched/fifo", 0600));
	fifo = must(open("watched/fifo", O_RDWR | O_NONBLOCK));
	must(write(fifo, "in the FIFO", 11));
	locked = make("watched/locked", "locked");
	must(flock(locked, LOCK_EX));
	must(fcntl(locked, F_OFD_SETLK, &whole));
	removed = make("removed", "removed");
	must(unlink("removed"));
	shared = must(mmap(NULL, 6, PROT_READ | PROT_WRITE, MAP_SHARED, make("shared", "shared"), 0));
	must(openpty(&master, &slave, NULL, NULL, NULL));
	must(stat("watched/socket", &socket_was));
	must(stat("watched/fifo", &fifo_was));
	must(stat("watched/locked", &locked_was));
	changes = must(inotify_init1(IN_NONBLOCK));
	must(inotify_add_watch(changes, "watched", IN_MODIFY | IN_ATTRIB | IN_CREATE | IN_DELETE | IN_MOVE | IN_CLOSE_WRITE));
}

static void same(const char *name, const struct stat *was)
{
	struct stat now;

	must(stat(name, &now));
	if (now.st_ino != was->st_ino || now.st_mode != was->st_mode || (!S_ISFIFO(now.st_mode) && now.st_mtim.tv_nsec != was->st_mtim.tv_nsec))
		wrong("%s is another", name);
}

static void look_at_names(void)
{
	char text[100] = "";
	int other;

	if (read(changes, text, sizeof text) != -1 || errno != EAGAIN)
		wrong("somebody has changed something in the directory");
	same("watched/socket", &socket_was);
	same("watched/fifo", &fifo_was);
	same("watched/locked", &locked_was);
	memset(text, 0, sizeof text);
	if (must(read(fifo, text, sizeof text)) != 11 || strcmp(text, "in the FIFO") != 0)
		wrong("the FIFO has %s", text);
	must(write(fifo, "in the FIFO", 11));
	other = must(open("watched/locked", O_RDWR));
	if (flock(other, LOCK_EX | LOCK_NB) == 0)
		wrong("the lock is lost");
	must(close(other));
	must(read(changes, text, sizeof text)); /* of these looks */
	if (must(pread(removed, text, sizeof text, 0)) != 7 || memcmp(shared, "shared", 6) != 0)
		wrong("the content of files is another");
}

const struct kind of_names[] = {
	{"names", names, look_at_names},
	{0},
};
