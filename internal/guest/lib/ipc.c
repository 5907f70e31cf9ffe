/*
 * ipc.c: cuIpc for the memory of alloc.c. The driver gives handles to its own memory only.
 * So the handle has the name of a socket, on which a thread of the process that gave it out
 * answers with a descriptor for each part.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "alloc.h"
#include "find.h"

#define MAGIC "cucriu\1"
#define PREFIX "cucriu-guest-"

/* What is in a handle. */
struct ticket {
	char magic[8], name[24];
	unsigned long long number, asked, part_size;
	unsigned char unused[8];
};
_Static_assert(sizeof(struct ticket) == sizeof(struct ipc), "a handle");

/* The beginning of an answer; the descriptor of a part goes along, where there is one. */
struct answer {
	CUresult result;
	size_t size;
};

static int listener = -1; /* of this process, for whoever has the records for himself */
static char own_name[24];
static unsigned long long numbers;

static socklen_t address(struct sockaddr_un *a, const char *name)
{
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(a->sun_path + 1, PREFIX, strlen(PREFIX));
	memcpy(a->sun_path + 1 + strlen(PREFIX), name, sizeof own_name);
	return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(PREFIX) + sizeof own_name;
}

/* Nobody is waited for without end. */
static void limit(int s)
{
	struct timeval most = {.tv_sec = 30};

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
}

/* The descriptor of a part, in FD. */
static struct answer export_part(unsigned long long number, size_t part, int *fd)
{
	ALONE;
	for (struct memory *m = memory_first(); m; m = m->next)
		if (m->number == number && !m->opened && part < m->count)
			return (struct answer){driver.cuMemExportToShareableHandle(fd, m->parts[part], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), memory_length(m, part)};
	return (struct answer){CUDA_ERROR_INVALID_VALUE, 0};
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

static bool send_answer(int s, struct answer a, int fd)
{
	union control control = {0};
	struct iovec data = {&a, sizeof a};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

	if (!a.result) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	}
	return sendmsg(s, &message, MSG_NOSIGNAL) == sizeof a;
}

static bool receive_answer(int s, struct answer *a, int *fd)
{
	union control control = {0};
	struct iovec data = {a, sizeof *a};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

	*fd = -1;
	if (recvmsg(s, &message, MSG_CMSG_CLOEXEC) != sizeof *a)
		return false;
	if (message.msg_controllen && control.header.cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(&control.header), sizeof *fd);
	return true;
}

static void serve(int s)
{
	struct ucred peer;
	socklen_t n = sizeof peer;
	unsigned long long request[2]; /* number, part */

	limit(s);
	if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &n) || (peer.uid && peer.uid != geteuid()))
		return;
	while (recv(s, request, sizeof request, 0) == sizeof request) {
		int fd = -1;
		struct answer a = export_part(request[0], request[1], &fd);
		bool sent = send_answer(s, a, fd);
		if (fd >= 0)
			close(fd);
		if (!sent || a.result)
			return;
	}
}

static void *server(void *unused)
{
	(void)unused;
	for (;;) {
		int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (s >= 0) {
			serve(s);
			close(s);
		} else if (errno != EINTR) {
			nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* there are too many descriptors */
		}
	}
	return NULL;
}

static bool random_name(char *name, size_t size)
{
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	bool done = fd >= 0 && read(fd, name, size) == (ssize_t)size;

	for (size_t i = 0; i < size; i++)
		name[i] = "abcdefghijklmnopqrstuvwxyz012345"[name[i] & 31];
	if (fd >= 0)
		close(fd);
	return done;
}

/* A program that uses CUDA has threads; the library itself can be loaded where there are none. */
static bool start_a_thread(void *(*routine)(void *))
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	pthread_t thread;
	sigset_t every, before;

	*(void **)&create = find_elsewhere("pthread_create");
	if (!create)
		return false;
	sigfillset(&every); /* the signals are for the program's own threads */
	sigprocmask(SIG_SETMASK, &every, &before);
	int failed = create(&thread, NULL, routine, NULL);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return !failed;
}

static bool listening(void)
{
	struct sockaddr_un a;

	if (listener >= 0)
		return true;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0)
		return false;
	if (!random_name(own_name, sizeof own_name) || bind(s, (struct sockaddr *)&a, address(&a, own_name)) || listen(s, 64)) {
		close(s);
		return false;
	}
	listener = s;
	if (!start_a_thread(server)) {
		close(s);
		listener = -1;
	}
	return listener >= 0;
}

CUresult cuIpcGetMemHandle(struct ipc *out, CUdeviceptr at)
{
	CUdeviceptr begin;
	struct ticket t = {.magic = MAGIC};

	BEGIN(driver.cuIpcGetMemHandle(out, at));
	struct memory *m = out ? memory_at(at, &begin) : NULL;
	if (!m || !m->companion || m->opened)
		return driver.cuIpcGetMemHandle(out, at);
	if (!listening())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!m->number)
		m->number = ++numbers;
	memcpy(t.name, own_name, sizeof t.name);
	t.number = m->number;
	t.asked = m->asked;
	t.part_size = m->part_size;
	memcpy(out, &t, sizeof t);
	return CUDA_SUCCESS;
}

/* The size of the parts but the last is known to both. */
static CUresult fetch(int s, const struct ticket *t, struct memory *m)
{
	size_t count = m->count, size = 0;

	for (m->count = 0; m->count < count; m->count++) {
		unsigned long long request[2] = {t->number, m->count};
		struct answer a;
		int fd;
		if (send(s, request, sizeof request, MSG_NOSIGNAL) != sizeof request || !receive_answer(s, &a, &fd))
			return CUDA_ERROR_INVALID_VALUE; /* its process has ended */
		if (!a.result)
			a.result = driver.cuMemImportFromShareableHandle(&m->parts[m->count], (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (fd >= 0)
			close(fd);
		if (a.result)
			return a.result;
		size += a.size;
	}
	m->size = size;
	return driver.cuMemGetAllocationPropertiesFromHandle(&m->wanted, m->parts[0]);
}

static CUresult open_memory(CUdeviceptr *out, const struct ticket *t, CUdeviceptr companion)
{
	struct sockaddr_un a;
	struct memory *m = memory_new(t->asked, &(struct properties){0});
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	if (m && s >= 0) {
		limit(s);
		m->asked = t->asked;
		m->opened = 1;
		m->number = t->number;
		memcpy(m->owner, t->name, sizeof m->owner);
		if (connect(s, (struct sockaddr *)&a, address(&a, t->name)))
			m->count = 0;
		else if (!(r = fetch(s, t, m)))
			r = ordinary_place(m, companion, out);
	}
	if (s >= 0)
		close(s);
	if (m && r)
		memory_release(m);
	return r;
}

/* A context has one mapping of it. */
static bool opened_before(CUdeviceptr *out, const struct ticket *t)
{
	CUcontext current, its;

	if (driver.cuCtxGetCurrent(&current))
		return false;
	ALONE;
	for (struct memory *m = memory_first(); m; m = m->next)
		if (m->opened && m->number == t->number && !memcmp(m->owner, t->name, sizeof m->owner) &&
		    !driver.cuPointerGetAttribute(&its, CONTEXT, m->companion) && its == current) {
			m->opened++;
			*out = m->mappings->at;
			return true;
		}
	return false;
}

static CUresult open_handle(CUdeviceptr *out, const struct ipc *handle, unsigned flags, CUresult (*otherwise)(CUdeviceptr *, struct ipc, unsigned))
{
	struct ticket t;
	CUdeviceptr companion;

	memcpy(&t, handle, sizeof t);
	if (driver_forked() || !out || flags > 1 || memcmp(t.magic, MAGIC, sizeof t.magic) || t.part_size != PART)
		return otherwise(out, *handle, flags);
	if (listener >= 0 && !memcmp(t.name, own_name, sizeof t.name))
		return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that gave it out */
	CUresult r = driver.cuMemAlloc_v2(&companion, 1); /* in the current context */
	if (!r && (opened_before(out, &t) || (r = open_memory(out, &t, companion))))
		driver.cuMemFree_v2(companion);
	return r;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, struct ipc handle, unsigned flags)
{
	return driver_known() ? open_handle(out, &handle, flags, driver.cuIpcOpenMemHandle) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc handle, unsigned flags)
{
	return driver_known() ? open_handle(out, &handle, flags, driver.cuIpcOpenMemHandle_v2) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
	struct memory *m;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (driver_forked() || !(m = ordinary_take_out(at, true)))
		return driver.cuIpcCloseMemHandle(at);
	if (m->opened == 1)
		return ordinary_end(m);
	ALONE;
	m->opened--;
	memory_enter(m);
	return CUDA_SUCCESS;
}
