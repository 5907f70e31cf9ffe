/* rights.c: see rights.h. Nobody waits in here, and nothing is allocated. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rights.h"

static int ours = -1, theirs = -1; /* the ends of a pair of sockets */

static void hang_up(int *socket)
{
	if (*socket >= 0)
		close(*socket);
	*socket = -1;
}

void rights_hang_up(void)
{
	hang_up(&ours);
	hang_up(&theirs);
}

int rights_open(void)
{
	int pair[2];

	rights_hang_up();
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		return -1;
	ours = pair[0];
	return theirs = pair[1];
}

int rights_leave(bool with)
{
	hang_up(&ours);
	if (!with)
		hang_up(&theirs);
	return theirs;
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(BATCH * sizeof(int))];
};

static bool send_message(const struct outgoing *o)
{
	union control control = {.header = {.cmsg_len = CMSG_LEN(o->count * sizeof *o->list), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec bytes = {(void *)o->data, o->size};
	struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(o->count * sizeof *o->list)};

	memcpy(CMSG_DATA(&control.header), o->list, o->count * sizeof *o->list);
	return sendmsg(ours, &message, MSG_NOSIGNAL) == (ssize_t)o->size;
}

bool rights_send(struct outgoing *o)
{
	const bool sent = !o->count || send_message(o);

	while (o->count)
		close(o->list[--o->count]);
	return sent;
}

bool rights_room(struct outgoing *o) { return o->count < BATCH || rights_send(o); }

size_t rights_receive(void *data, size_t size, int *list)
{
	union control control;
	struct iovec bytes = {data, size};
	struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t got = recvmsg(ours, &message, MSG_CMSG_CLOEXEC);
	size_t n;

	if (got < 0 || message.msg_controllen < CMSG_LEN(0) || control.header.cmsg_type != SCM_RIGHTS)
		return 0;
	n = (control.header.cmsg_len - CMSG_LEN(0)) / sizeof *list;
	memcpy(list, CMSG_DATA(&control.header), n * sizeof *list);
	if (got == (ssize_t)size && !(message.msg_flags & MSG_CTRUNC))
		return n;
	while (n)
		close(list[--n]);
	return 0;
}

bool rights_try(void)
{
	int list[BATCH];
	char byte = 0;
	struct outgoing o = {.data = &byte, .size = 1};
	size_t n = 0;

	if (rights_open() < 0)
		return false;
	while (o.count < BATCH)
		o.list[o.count++] = ours;
	if (send_message(&o)) {
		hang_up(&ours);
		ours = theirs;
		theirs = -1;
		n = rights_receive(&byte, 1, list);
	}
	const bool all = n == BATCH;
	while (n)
		close(list[--n]);
	rights_hang_up();
	return all;
}

bool rights_take(void)
{
	int list[BATCH];
	char byte;
	size_t n = rights_receive(&byte, 1, list);

	rights_hang_up();
	if (n == 1) {
		ours = list[0];
		return true;
	}
	while (n)
		close(list[--n]);
	return false;
}
