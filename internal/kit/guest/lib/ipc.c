/*
 * ipc.c: cuIpc for the memory of alloc.c. The driver gives handles to its own memory only.
 * So the handle has the name of a socket, on which a thread of the process that gave it out
 * answers with a descriptor for each part. An export of memory that was made by cuMemCreate is
 * the same: the descriptor that the program gets is that of a small file in memory, in which the
 * handle is.
 *
 * Socket and thread are made before the first memory is served: when the program asks for a handle, it may have no
 * descriptor left, another root, or a limit. The socket has a name, and listens, only from then on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "alloc.h"
#include "gate.h"

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

/* Of this process: the listener, and behind it who is connected. The thread alone changes them, but for the first. */
static struct pollfd sockets[65];
static size_t connections;
static char own_name[24];
static bool started;	    /* there are a socket and a thread */
static uint32_t listening; /* how far the thread is: 0, ASKED, or one of the others. By fours: agent.c says why */
enum { ASKED = 4, LISTENS = 8, FAILED = 12 };
static unsigned long long numbers;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* one opens at a time: a context has one mapping of each memory */

const char *ipc_name(void) { return own_name; }
bool ipc_gives(void) { return __atomic_load_n(&connections, __ATOMIC_ACQUIRE); }

/* Repeats a call that a signal, a stop or a freeze of the process has interrupted. */
#define AGAIN(call)                                                                                                    \
	({                                                                                                             \
		ssize_t done;                                                                                          \
		do                                                                                                     \
			done = call;                                                                                   \
		while (done < 0 && errno == EINTR);                                                                    \
		done;                                                                                                  \
	})

static socklen_t address(struct sockaddr_un *a, const char *name)
{
	*a = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(a->sun_path + 1, PREFIX, strlen(PREFIX));
	memcpy(a->sun_path + 1 + strlen(PREFIX), name, sizeof own_name);
	return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(PREFIX) + sizeof own_name;
}

/* The descriptor of a part, in FD. */
static struct answer export_part(unsigned long long number, size_t part, int *fd)
{
	ALONE;
	for (struct memory *m = memory_first(); m; m = m->next)
		if (number && m->number == number && !m->opened && !m->out && part < m->count) {
			CUresult r = driver.cuMemExportToShareableHandle(fd, m->parts[part], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
			if (!r)
				fcntl(*fd, F_SETFD, FD_CLOEXEC);
			m->shared = m->shared || !r;
			return (struct answer){r, memory_length(m, part)};
		}
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
	return AGAIN(sendmsg(s, &message, MSG_NOSIGNAL | MSG_DONTWAIT)) == sizeof a;
}

static bool receive_answer(int s, struct answer *a, int *fd)
{
	union control control = {0};
	struct iovec data = {a, sizeof *a};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

	*fd = -1;
	if (AGAIN(recvmsg(s, &message, MSG_CMSG_CLOEXEC)) != sizeof *a)
		return false;
	if (message.msg_controllen && control.header.cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(&control.header), sizeof *fd);
	return true;
}

/* Answers one request. Who asks waits for the answer before the next one. */
static bool serve(int s)
{
	unsigned long long request[2]; /* number, part */
	int fd = -1;

	if (AGAIN(recv(s, request, sizeof request, MSG_DONTWAIT)) != sizeof request)
		return false;
	struct answer a = export_part(request[0], request[1], &fd);
	bool sent = send_answer(s, a, fd);
	if (fd >= 0)
		close(fd);
	return sent && !a.result;
}

/* A program may close all that it finds open, and what it opens then has the same numbers. */
static bool is_own(int s)
{
	struct sockaddr_un own, its = {0};
	socklen_t n = sizeof its, size = address(&own, own_name);

	return !getsockname(s, (struct sockaddr *)&its, &n) && n == size && !memcmp(&own, &its, n);
}

/* Nobody has used it yet. */
static bool is_unused(int s)
{
	struct sockaddr_un a = {0};
	socklen_t n = sizeof a, size = sizeof a;
	int kind = 0;

	return !getsockopt(s, SOL_SOCKET, SO_TYPE, &kind, &(socklen_t){sizeof kind}) && kind == SOCK_SEQPACKET &&
	       !getsockname(s, (struct sockaddr *)&a, &n) && a.sun_family == AF_UNIX && n == sizeof a.sun_family &&
	       getpeername(s, (struct sockaddr *)&a, &size);
}

/* A forked child may have it, too, so that the other end does not see that it is closed. */
static void hang_up(int s)
{
	shutdown(s, SHUT_RDWR);
	close(s);
}

/* Ends the connection I of COUNT, and returns how many are left. */
static size_t end_connection(size_t i, size_t count)
{
	int s = sockets[i].fd;

	sockets[i].fd = -1; /* a forked child must not close what has this number later */
	if (is_own(s))
		hang_up(s);
	memmove(sockets + i, sockets + i + 1, (--count - i) * sizeof *sockets);
	sockets[count].fd = -1;
	__atomic_store_n(&connections, count - 1, __ATOMIC_RELEASE);
	return count;
}

/* Who has waited longest has to go if there are too many. */
static size_t admit(int s, size_t count)
{
	struct ucred peer;
	socklen_t n = sizeof peer;

	if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &n) || (peer.uid && peer.uid != geteuid())) {
		hang_up(s);
		return count;
	}
	if (count == sizeof sockets / sizeof *sockets)
		count = end_connection(1, count);
	sockets[count] = (struct pollfd){.fd = s, .events = POLLIN};
	__atomic_store_n(&connections, count, __ATOMIC_RELEASE);
	return count + 1;
}

static bool random_name(char *name, size_t size)
{
	bool done = syscall(SYS_getrandom, name, size, 0) == (ssize_t)size;
	int fd = done ? -1 : open("/dev/urandom", O_RDONLY | O_CLOEXEC); /* the call is of Linux 3.17 */

	done = done || (fd >= 0 && read(fd, name, size) == (ssize_t)size);
	for (size_t i = 0; i < size; i++)
		name[i] = "abcdefghijklmnopqrstuvwxyz012345"[name[i] & 31];
	if (fd >= 0)
		close(fd);
	return done;
}

/* Listens, on the socket that was made for it, if that is there yet. */
static bool listen_for_others(void)
{
	struct sockaddr_un a;
	const socklen_t size = address(&a, own_name);
	int s = sockets[0].fd;

	if (!is_unused(s))
		s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0 || bind(s, (struct sockaddr *)&a, size) || listen(s, 64)) {
		if (s >= 0 && s != sockets[0].fd)
			close(s);
		return false;
	}
	sockets[0] = (struct pollfd){.fd = s, .events = POLLIN};
	return true;
}

/* Waits until the program gives the first handle out. */
static void await_first(void)
{
	for (uint32_t n; (n = __atomic_load_n(&listening, __ATOMIC_ACQUIRE)) != LISTENS;) {
		if (n != ASKED) {
			futex_wait(&listening, n, NULL);
			continue;
		}
		n = random_name(own_name, sizeof own_name) && listen_for_others() ? LISTENS : FAILED;
		__atomic_store_n(&listening, n, __ATOMIC_RELEASE);
		futex_wake(&listening);
	}
}

static void *server(void *unused)
{
	size_t count = 1;

	(void)unused;
	await_first();
	for (;;) {
		if (poll(sockets, count, -1) <= 0)
			continue;
		for (size_t i = count; i-- > 1;)
			if (sockets[i].revents && !(is_own(sockets[i].fd) && serve(sockets[i].fd)))
				count = end_connection(i, count);
		if (!sockets[0].revents)
			continue;
		if (!is_own(sockets[0].fd)) {
			if (!listen_for_others())
				nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
			continue;
		}
		int s = accept4(sockets[0].fd, NULL, NULL, SOCK_CLOEXEC);
		if (s >= 0)
			count = admit(s, count);
		else if (errno != EINTR)
			nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* there are too many descriptors */
	}
	return NULL;
}

static bool starting;

void ipc_in_a_child(void)
{
	for (size_t i = 0; started && i < sizeof sockets / sizeof *sockets; i++)
		if (sockets[i].fd > 0 && (is_own(sockets[i].fd) || is_unused(sockets[i].fd)))
			close(sockets[i].fd);
	memset(sockets, 0, sizeof sockets);
	connections = 0;
	started = starting = false;
	listening = 0;
	opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

void ipc_start(void)
{
	if (started || __atomic_test_and_set(&starting, __ATOMIC_ACQ_REL))
		return;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s >= 0) {
		sockets[0].fd = s;
		if (!(started = start_a_thread(server, NULL)))
			close(s);
	}
	__atomic_clear(&starting, __ATOMIC_RELEASE);
}

bool ipc_started(void) { return started; }

/* The thread does it: the program's own may be forbidden to. */
static bool is_listening(void)
{
	uint32_t n = __atomic_load_n(&listening, __ATOMIC_ACQUIRE);

	if (!started)
		return false;
	if (n != LISTENS) {
		__atomic_store_n(&listening, ASKED, __ATOMIC_RELEASE);
		futex_wake(&listening);
	}
	while ((n = __atomic_load_n(&listening, __ATOMIC_ACQUIRE)) == ASKED)
		futex_wait(&listening, ASKED, NULL);
	return n == LISTENS;
}

/* What others need to have memory, too. */
static CUresult make_ticket(struct ticket *t, struct memory *m, size_t asked)
{
	if (!is_listening())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!m->number)
		m->number = ++numbers;
	*t = (struct ticket){.magic = MAGIC, .number = m->number, .asked = asked, .part_size = m->part_size};
	memcpy(t->name, own_name, sizeof t->name);
	return CUDA_SUCCESS;
}

/* Processes are not to share by means that cannot be put up again. Told that there are none, they use others. */
CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device)
{
	enum { HANDLE_TYPE_FABRIC_SUPPORTED = 128, MULTICAST_SUPPORTED = 132 };

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuDeviceGetAttribute(out, attribute, device);
	if (!r && (attribute == HANDLE_TYPE_FABRIC_SUPPORTED || attribute == MULTICAST_SUPPORTED))
		*out = 0;
	return r;
}

static CUresult unserved(CUresult r, int more)
{
	if (!r)
		agent_unserved(more);
	return r;
}

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

int ipc_export(struct memory *m)
{
	struct ticket t;

	if (make_ticket(&t, m, m->size))
		return -1;
	int fd = (int)syscall(SYS_memfd_create, "cucriu-guest", MFD_CLOEXEC | MFD_ALLOW_SEALING); /* the function is of glibc 2.27 */
	if (fd >= 0 && (write(fd, &t, sizeof t) != sizeof t || fcntl(fd, F_ADD_SEALS, SEALS))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Is a descriptor one of those? The file cannot change any more. */
static bool read_ticket(int fd, struct ticket *t)
{
	int seals = fcntl(fd, F_GET_SEALS); /* the kernel may add one */

	return seals >= 0 && (seals & SEALS) == SEALS && pread(fd, t, sizeof *t, 0) == sizeof *t && !memcmp(t->magic, MAGIC, sizeof t->magic);
}

CUresult cuIpcGetMemHandle(struct ipc *out, CUdeviceptr at)
{
	struct ticket t;

	BEGIN(driver.cuIpcGetMemHandle(out, at));
	struct memory *m = out ? ordinary_at(at) : NULL;
	if (!m || m->opened)
		return driver.cuIpcGetMemHandle(out, at);
	CUresult r = make_ticket(&t, m, m->asked);
	if (!r)
		memcpy(out, &t, sizeof t);
	return r;
}

/* The size of the parts but the last is known to both. */
static CUresult fetch(int s, const struct ticket *t, struct memory *m)
{
	size_t count = m->count, size = 0;

	for (m->count = 0; m->count < count; m->count++) {
		unsigned long long request[2] = {t->number, m->count};
		struct answer a;
		int fd;
		if (AGAIN(send(s, request, sizeof request, MSG_NOSIGNAL)) != sizeof request || !receive_answer(s, &a, &fd))
			return CUDA_ERROR_INVALID_VALUE; /* its process has ended */
		if (!a.result)
			a.result = driver.cuMemImportFromShareableHandle(&m->parts[m->count], (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (fd >= 0)
			close(fd);
		if (a.result)
			return a.result;
		size += a.size;
	}
	if (t->asked > size || size - t->asked >= STEP)
		return CUDA_ERROR_INVALID_VALUE;
	m->size = size;
	return driver.cuMemGetAllocationPropertiesFromHandle(&m->wanted, m->parts[0]);
}

/* The other process may be stopped. It is waited for as long as it lives: the driver would not need it. */
static int connect_to(const char *name)
{
	struct sockaddr_un a;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (s < 0)
		return -1;
	if (AGAIN(connect(s, (struct sockaddr *)&a, address(&a, name)))) {
		close(s);
		return -1;
	}
	return s;
}

/* A record with the parts of another process's memory, which is in no list yet. */
static CUresult fetch_memory(struct memory **out, const struct ticket *t)
{
	int s = connect_to(t->name);

	if (s < 0)
		return CUDA_ERROR_INVALID_VALUE; /* its process has ended */
	struct memory *m = memory_new(t->asked, &(struct properties){0});
	if (m && t->part_size >= t->asked) { /* it has no parts */
		m->count = 1;
		m->part_size = t->part_size;
	}
	CUresult r = m ? fetch(s, t, m) : CUDA_ERROR_OUT_OF_MEMORY;
	hang_up(s);
	if (r && m)
		memory_release(m);
	if (r)
		return r;
	m->opened = 1;
	m->number = t->number;
	memcpy(m->owner, t->name, sizeof m->owner);
	*out = m;
	return CUDA_SUCCESS;
}

static CUresult open_memory(CUdeviceptr *out, const struct ticket *t, CUdeviceptr companion)
{
	struct memory *m;
	CUresult r = fetch_memory(&m, t);

	if (r)
		return r;
	m->asked = t->asked;
	if ((r = ordinary_place(m, companion, out)))
		memory_release(m);
	return r;
}

/* A handle for memory of this process. */
static CUresult import_own(CUhandle *out, const struct ticket *t)
{
	ALONE;
	for (struct memory *m = memory_first(); m; m = m->next)
		if (m->number == t->number && !m->opened && !m->companion) {
			m->references++;
			*out = (CUhandle)(uintptr_t)m;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemImportFromShareableHandle(CUhandle *out, void *descriptor, int type)
{
	struct ticket t;
	struct memory *m;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (driver_forked() || !out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !read_ticket((int)(intptr_t)descriptor, &t))
		return unserved(driver.cuMemImportFromShareableHandle(out, descriptor, type), 1);
	UNCANCELLED;
	if (!memory_can_be_served())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!t.asked || t.asked > 1ull << 46 || (t.part_size != PART && t.part_size != t.asked))
		return CUDA_ERROR_INVALID_VALUE;
	if (listening == LISTENS && !memcmp(t.name, own_name, sizeof t.name))
		return import_own(out, &t);
	CUresult r = fetch_memory(&m, &t);
	return r ? r : memory_hand_out(m, out);
}

/* A context has one mapping of it. */
static bool opened_before(CUdeviceptr *out, const struct ticket *t)
{
	CUcontext current;

	if (driver.cuCtxGetCurrent(&current))
		return false;
	ALONE;
	for (struct memory *m = memory_first(); m; m = m->next)
		if (m->opened && !m->ending && m->number == t->number && !memcmp(m->owner, t->name, sizeof m->owner) && m->context == current) {
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
		return unserved(otherwise(out, *handle, flags), 1);
	UNCANCELLED;
	if (!memory_can_be_served())
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (t.asked < LEAST || t.asked > 1ull << 46)
		return CUDA_ERROR_INVALID_VALUE;
	if (listening == LISTENS && !memcmp(t.name, own_name, sizeof t.name))
		return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that gave it out */
	CUresult r = driver.cuMemAlloc_v2(&companion, 1); /* in the current context */
	if (r)
		return r;
	pthread_mutex_lock(&opening);
	bool again = opened_before(out, &t);
	if (!again)
		r = open_memory(out, &t, companion);
	pthread_mutex_unlock(&opening);
	if (again || r)
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
	bool stays = false;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	UNCANCELLED;
	struct memory *m = driver_forked() ? NULL : ordinary_begin_end(at, true, &stays);
	if (m)
		return ordinary_end(m, driver.cuMemFree_v2(m->companion));
	return stays ? CUDA_SUCCESS : unserved(driver.cuIpcCloseMemHandle(at), -1);
}
