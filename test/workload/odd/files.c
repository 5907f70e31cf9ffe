/* Kinds of open files. */
#include "odd.h"

#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

static int events, watched;

static void watch(int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	must(epoll_ctl(events, EPOLL_CTL_ADD, fd, &event));
}

static void epoll(void)
{
	events = must(epoll_create1(0));
	watched = must(eventfd(0, EFD_NONBLOCK));
	watch(watched);
}

/* The set holds the file twice: by its descriptor, and by one that is closed. */
static void epoll_duplicate(void)
{
	int duplicate;

	epoll();
	duplicate = must(dup(watched));
	watch(duplicate);
	must(close(duplicate));
}

/* The set holds the file by a descriptor that is closed, and another descriptor has the file. */
static void epoll_moved(void)
{
	int was;

	epoll();
	was = watched;
	watched = must(dup(was));
	must(close(was));
}

/* The number of a descriptor in the set is that of another file now. */
static void epoll_reused(void)
{
	int was;

	epoll();
	was = watched;
	watched = must(fcntl(was, F_DUPFD, 100));
	must(dup2(must(eventfd(0, 0)), was));
}

static void look_at_epoll(void)
{
	struct epoll_event event;
	uint64_t one = 1;

	if (epoll_wait(events, &event, 1, 0) != 0)
		wrong("the epoll set has events");
	must(write(watched, &one, sizeof one));
	if (epoll_wait(events, &event, 1, 0) != 1)
		wrong("the epoll set has no event");
	must(read(watched, &one, sizeof one));
}

const struct kind of_files[] = {
	{"epoll", epoll, look_at_epoll},
	{"epoll-duplicate", epoll_duplicate, look_at_epoll},
	{"epoll-moved", epoll_moved, look_at_epoll},
	{"epoll-reused", epoll_reused, look_at_epoll},
	{0},
};
