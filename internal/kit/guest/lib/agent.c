/*
 * agent.c: a thread that moves the memory in parts to the host and back, when the program
 * that dumps or restores this process tells it to. It is told through a mailbox in this
 * library's memory, which only a tracer can write to.
 *
 * It calls the driver only from OUT to the end of IN, while no thread of the program is in
 * a call: some calls wait for all work of the GPUs, which may wait for the program in turn.
 * The program's threads are stopped then, wherever they are, and one of them may have the
 * dynamic loader's lock. So nothing is loaded there, and no thread is started: all are there from cuInit on. The
 * addresses of memory that is out stay reserved.
 *
 * A program may put itself under a seccomp filter that ends it for a system call which it does not make itself. A filter
 * is the affair of the thread that takes it and of those that it starts later. So the threads make the calls that begin
 * a thread right after the driver has begun its own, and all else is done in them. Whether a filter that was put on
 * every thread (SECCOMP_FILTER_FLAG_TSYNC) allows what they call is asked from outside before they are told anything:
 * internal/kit/guest/calls.go has the list.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent.h"
#include "alloc.h"
#include "files.h"
#include "find.h"
#include "gate.h"
#include "hash.h"
#include "keep.h"
#include "share.h"

enum command { PREPARE = 1, CLOSE, OPEN, OUT, IN, FINISH, OUT_KEPT, LET_GO, CONNECT, IN_KEPT, LIST, GIVE, TAKE, DOWN, PASS };
enum state { IDLE, PREPARED, EMPTY };

#define GUEST_BUSY (-1)	   /* a thread of the program was stopped while it had the records */
#define GUEST_NOTHING (-2) /* there is too little memory for it to be worth while */
#define GUEST_GIVING (-3)  /* memory is on its way to another process */
#define GUEST_COUNTED (-4) /* it was only to be found out how much there is to copy */
#define GUEST_UNREAD (-5)  /* the files of an image cannot be read */

#define MOST_COPIERS 16
#define MOST_THREADS (MOST_COPIERS + 1)

#ifndef VERSION /* the tests have older ones, of which who dumps the process knows less */
#define VERSION 9
#endif

/* internal/core/agent has the same. */
EXPORT struct mailbox {
	char magic[8];
	uint32_t version;
	uint32_t command; /* a number that changes, times 16, and what is to be done; the other side writes it */
	uint32_t done;	  /* the command that was done last */
	int32_t result;	  /* of it: 0, a CUresult, or one of those above */
	uint32_t state;
	uint32_t closed; /* the gate is */
	uint64_t moved; /* a number that grows while the command that is under way gets on */
	int32_t threads[MOST_THREADS]; /* the agent and its copiers, or 0 */
	/* since version 2 */
	uint64_t staging, staging_end; /* where memory is that is out */
	/* since version 3 */
	int32_t descriptor; /* of OUT_KEPT and CONNECT: the other side takes a copy of it; or -1 */
	uint32_t kept_count;
	uint64_t kept; /* where it says how much memory stays on each GPU */
	struct hashing hashing;
	/* since version 4 */
	struct sharing sharing;
	/* since version 5 */
	uint64_t unserved; /* how much memory of other processes was opened by the driver alone */
	/* since version 6 */
	uint32_t passes, padding; /* of PASS: how many calls may begin although the gate is closed; the other side writes it */
	/* since version 7 */
	uint64_t counts; /* not 0: OUT copies nothing, and says how much it would; the other side writes it */
	uint64_t whole, content; /* the answer: how much memory it moves, and how much of that is copied */
	/* since version 8 */
	uint64_t takes; /* of TAKE: how many messages are in the socket; the other side writes it */
	/* since version 9 */
	uint64_t pieces; /* not 0: IN reads so many from files, which are in the socket; the other side writes it */
} cucriu_guest = {.magic = "cucriu\1", .version = VERSION, .descriptor = -1};

void agent_unserved(int more) { __atomic_fetch_add(&cucriu_guest.unserved, more, __ATOMIC_RELAXED); }

#define NAME "cucriu-guest" /* of the threads */

/* Copies with two buffers, through which the GPU and the processor work at the same time. */
struct copier {
	char *buffer[2]; /* in the ring */
	void *stream[2][MOST_GPUS];
};

static struct copier copiers[MOST_COPIERS];
static char *ring; /* memory that the GPUs can read and write */
static unsigned copier_count;
static CUcontext contexts[MOST_GPUS]; /* in which the copies of a GPU's memory are made */
static char *staging;
static size_t staging_size;
static bool *zeros; /* behind it: slices that are not in it, because every byte is 0 */
static size_t slice; /* what is copied at once: much needs a larger ring */
static uint64_t next; /* the offset in staging that nobody copies yet */
static bool listed;   /* who moves this memory knows what other processes have of it */
static int failed;    /* the first failure of a copier */
/* What the copiers do: they begin when the round changes, and the last of them wakes the agent. */
static enum { BEGIN_THREAD, RELAX, SET_UP, COPY_OUT, COPY_IN, CLEAR_UP } task;
/*
 * Both count by fours: a wait for a word that is 2 is one for a lock of the C library, and who
 * watches from outside would step the program's threads out of it (internal/kit/inject/stepout.go).
 */
#define ONE 4u
static uint32_t round_number, at_work;

/* With a stack of SIZE beside what the C library keeps on it; 0 is as large as the program's. */
static bool start_with_stack(size_t size, void *(*routine)(void *), void *argument)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	int (*detach)(pthread_t), (*init)(pthread_attr_t *), (*set_size)(pthread_attr_t *, size_t);
	size_t (*least)(const pthread_attr_t *);
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t every, before;

	/* A program that uses CUDA has threads; the library itself can be loaded where there are none. */
	*(void **)&create = find_elsewhere("pthread_create");
	*(void **)&detach = find_elsewhere("pthread_detach");
	*(void **)&init = find_elsewhere("pthread_attr_init");
	*(void **)&set_size = find_elsewhere("pthread_attr_setstacksize");
	*(void **)&least = find_elsewhere("__pthread_get_minstack"); /* glibc; others add thread-local memory themselves */
	if (!create || !detach || !init || !set_size || init(&attributes))
		return false;
	if (size && set_size(&attributes, size + (least ? least(&attributes) : 0)))
		return false;
	sigfillset(&every); /* the signals are for the program's own threads */
	sigprocmask(SIG_SETMASK, &every, &before);
	const int error = create(&thread, &attributes, routine, argument);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (!error)
		detach(thread);
	return !error;
}

struct beginning {
	void *(*routine)(void *);
	void *argument;
	uint32_t begun; /* by fours, too */
};

static void *begin(void *of)
{
	struct beginning *b = of;
	const struct beginning its = *b;

	__atomic_store_n(&b->begun, ONE, __ATOMIC_RELEASE); /* from here on *b may be gone: a wake for nobody does no harm */
	futex_wake(&b->begun);
	return its.routine(its.argument);
}

bool start_a_thread(void *(*routine)(void *), void *argument)
{
	struct beginning b = {routine, argument, 0};

	if (!start_with_stack(0, begin, &b))
		return false;
	while (!__atomic_load_n(&b.begun, __ATOMIC_ACQUIRE))
		futex_wait(&b.begun, 0, NULL);
	return true;
}

static void begin_thread(size_t number)
{
	cucriu_guest.threads[number] = (int32_t)syscall(SYS_gettid);
	prctl(PR_SET_NAME, NAME);
}

/* A thread of ours must not fail a capture of the program's, nor be failed by one. */
static void relax(void)
{
	int relaxed = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED */

	driver.cuThreadExchangeStreamCaptureMode(&relaxed);
}

static void end_of_work(void)
{
	if (!__atomic_sub_fetch(&at_work, ONE, __ATOMIC_ACQ_REL))
		futex_wake(&at_work);
}

static void fail(int result)
{
	int none = 0;

	if (result)
		__atomic_compare_exchange_n(&failed, &none, result, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static CUresult set_up(struct copier *c)
{
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < 2; i++)
		c->buffer[i] = ring + (2 * (c - copiers) + i) * slice;
	for (int d = 0; d < MOST_GPUS && !r; d++) {
		if (!contexts[d])
			continue;
		r = driver.cuCtxSetCurrent(contexts[d]);
		for (int i = 0; i < 2 && !r; i++)
			r = driver.cuStreamCreate(&c->stream[i][d], 1 /* CU_STREAM_NON_BLOCKING */);
	}
	return r;
}

static void clear_up(struct copier *c)
{
	for (int d = 0; d < MOST_GPUS; d++)
		for (int i = 0; i < 2; i++)
			if (c->stream[i][d])
				driver.cuStreamDestroy_v2(c->stream[i][d]);
	*c = (struct copier){0};
	driver.cuCtxSetCurrent(NULL); /* it may end before this thread does */
}

/* The memory whose copy is at an offset in staging. Nobody changes the records now. */
static const struct memory *staged_at(size_t offset)
{
	for (const struct memory *m = memory_first(); m; m = m->next)
		if (m->moving && offset - m->staged < m->size)
			return m;
	return NULL;
}

/* A slice that a copier has in a buffer. */
struct slice {
	size_t offset; /* in staging */
	size_t size;
	void *stream;
};

static bool is_zero(const char *bytes, size_t size) { return !*bytes && !memcmp(bytes, bytes + 1, size - 1); }

static CUresult finish_slice(struct slice *s, const char *buffer)
{
	CUresult r = s->size ? driver.cuStreamSynchronize(s->stream) : CUDA_SUCCESS;

	if (!r && s->size && task == COPY_OUT && !(zeros[s->offset / slice] = is_zero(buffer, s->size)))
		memcpy(staging + s->offset, buffer, s->size);
	__atomic_add_fetch(&cucriu_guest.moved, s->size, __ATOMIC_RELAXED);
	s->size = 0;
	return r;
}

static CUresult copy_slice(struct copier *c, int i, struct slice *s, size_t offset)
{
	const struct memory *m = staged_at(offset);
	int device;

	if (task == COPY_OUT)
		zeros[offset / slice] = hash_zero(&cucriu_guest.hashing, offset / slice);
	if (task == COPY_OUT && (zeros[offset / slice] || hash_same(&cucriu_guest.hashing, offset / slice))) {
		__atomic_add_fetch(&cucriu_guest.moved, 1, __ATOMIC_RELAXED);
		return CUDA_SUCCESS;
	}
	if (!m)
		return CUDA_SUCCESS; /* what is left over behind the last slice of a memory */
	device = m->wanted.location.id;
	*s = (struct slice){offset, slice, c->stream[i][device]};
	if (s->size > m->size - (offset - m->staged))
		s->size = m->size - (offset - m->staged);
	const CUdeviceptr at = m->mappings->at + (offset - m->staged);
	CUresult r = driver.cuCtxSetCurrent(contexts[device]);
	if (r)
		return r;
	if (task == COPY_OUT)
		return driver.cuMemcpyDtoHAsync_v2(c->buffer[i], at, s->size, s->stream);
	if (cucriu_guest.pieces ? !files_have(offset, s->size) : zeros[offset / slice])
		return driver.cuMemsetD8Async(at, 0, s->size, s->stream);
	if (!cucriu_guest.pieces)
		memcpy(c->buffer[i], staging + offset, s->size);
	else if (!files_read(c->buffer[i], offset, s->size))
		return GUEST_UNREAD;
	return driver.cuMemcpyHtoDAsync_v2(at, c->buffer[i], s->size, s->stream);
}

static CUresult copy(struct copier *c)
{
	struct slice slices[2] = {0};
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; !r && !__atomic_load_n(&failed, __ATOMIC_RELAXED); i = !i) {
		size_t offset = __atomic_fetch_add(&next, slice, __ATOMIC_RELAXED);
		if (offset >= staging_size)
			break;
		if (!(r = finish_slice(&slices[i], c->buffer[i])))
			r = copy_slice(c, i, &slices[i], offset);
	}
	for (int i = 0; i < 2; i++) {
		CUresult last = finish_slice(&slices[i], c->buffer[i]);
		r = r ? r : last;
	}
	return r;
}

static void *copier(void *argument)
{
	struct copier *c = argument;
	uint32_t seen = __atomic_load_n(&round_number, __ATOMIC_ACQUIRE);

	begin_thread(1 + (size_t)(c - copiers));
	for (;; seen += ONE) {
		switch (task) {
		case BEGIN_THREAD: break;
		case RELAX: relax(); break;
		case SET_UP: fail(set_up(c)); break;
		case COPY_OUT:
		case COPY_IN: fail(copy(c)); break;
		case CLEAR_UP: clear_up(c); break;
		}
		end_of_work();
		while (__atomic_load_n(&round_number, __ATOMIC_ACQUIRE) == seen)
			futex_wait(&round_number, seen, NULL);
	}
	return NULL;
}

static int await_copiers(void)
{
	for (uint32_t n; (n = __atomic_load_n(&at_work, __ATOMIC_ACQUIRE));)
		futex_wait(&at_work, n, NULL);
	return failed;
}

static int have_copiers(int what)
{
	failed = 0;
	next = 0;
	task = what;
	at_work = copier_count * ONE;
	__atomic_add_fetch(&round_number, ONE, __ATOMIC_RELEASE);
	futex_wake(&round_number);
	return await_copiers();
}

static unsigned processors(void)
{
	unsigned long set[128] = {0};
	unsigned n = 0;
	long size = syscall(SYS_sched_getaffinity, 0, sizeof set, set);

	for (long i = 0; i < size / (long)sizeof *set; i++)
		n += (unsigned)__builtin_popcountl(set[i]);
	return n < 2 ? 2 : n > MOST_COPIERS ? MOST_COPIERS : n;
}

/* For who has the records for himself. */
static size_t memory_total(void)
{
	size_t total = 0;

	for (const struct memory *m = memory_first(); m; m = m->next)
		total += m->size;
	return total;
}

/* A thread of the program that was stopped may have them. */
static bool take_records(void)
{
	for (int i = 0; i < 100; i++) {
		if (parts_try())
			return true;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return false;
}

/* Has it memory of other processes, or others memory of it? For who has the records for himself. */
static bool shares(void)
{
	for (const struct memory *m = memory_first(); m; m = m->next)
		if (share_is(m))
			return true;
	return false;
}

static void finish(void)
{
	listed = false;
	cucriu_guest.state = IDLE;
}

static int prepare(void)
{
	{
		ALONE;
		if (memory_total() < PART && !shares())
			return GUEST_NOTHING;
	}
	if (!copier_count)
		return CUDA_ERROR_OUT_OF_MEMORY;
	relax();
	have_copiers(RELAX);
	cucriu_guest.state = PREPARED;
	return CUDA_SUCCESS;
}

/* A context for the copies of each GPU that has memory of ours. */
static void find_contexts(void)
{
	memset(contexts, 0, sizeof contexts);
	for (const struct memory *m = memory_first(); m; m = m->next) {
		const int d = m->wanted.location.id;
		unsigned flags;
		int active = 0;
		if (d < 0 || d >= MOST_GPUS || contexts[d] || m->opened || (m->companion && !ordinary_lives(m)))
			continue;
		if (m->companion)
			contexts[d] = m->context;
		else if (!driver.cuDevicePrimaryCtxGetState(d, &flags, &active) && active && !driver.cuDevicePrimaryCtxRetain(&contexts[d], d))
			driver.cuDevicePrimaryCtxRelease_v2(d);
	}
}

static CUcontext any_context(void)
{
	for (int d = 0; d < MOST_GPUS; d++)
		if (contexts[d])
			return contexts[d];
	return NULL;
}

/* Copies all memory that is moved, through a ring that is there only meanwhile. */
static int copy_all(int direction)
{
	int r = driver.cuCtxSetCurrent(any_context());

	if (!r)
		r = driver.cuMemHostAlloc((void **)&ring, 2 * copier_count * slice, 1 /* CU_MEMHOSTALLOC_PORTABLE */);
	if (!r) {
		r = have_copiers(SET_UP);
		if (!r && direction == COPY_OUT)
			hash_begin(&cucriu_guest.hashing, contexts, slice, staging_size / slice, ring);
		if (!r && direction == COPY_OUT && cucriu_guest.counts) {
			cucriu_guest.whole = staging_size;
			cucriu_guest.content = hash_content(&cucriu_guest.hashing);
			r = GUEST_COUNTED;
		}
		if (!r)
			r = have_copiers(direction);
		have_copiers(CLEAR_UP);
		driver.cuMemFreeHost(ring);
	}
	driver.cuCtxSetCurrent(NULL);
	return r;
}

/* Which GPUs may use memory, if that is the same for all of it. */
static bool find_access(struct memory *m)
{
	int n = 0;

	if (driver.cuDeviceGetCount(&n))
		return false;
	m->access_count = 0;
	for (int d = 0; d < n && d < MOST_GPUS; d++) {
		struct location where = {CU_MEM_LOCATION_TYPE_DEVICE, d};
		unsigned long long first = 0;
		for (const struct mapping *p = m->mappings; p; p = p->next)
			for (size_t i = 0; i < m->count; i++) {
				unsigned long long flags = 0;
				if (driver.cuMemGetAccess(&flags, &where, p->at + i * m->part_size))
					return false;
				if (p == m->mappings && !i)
					first = flags;
				else if (flags != first)
					return false;
			}
		if (first)
			m->access[m->access_count++] = (struct access){where, (int)first};
	}
	return true;
}

/* Its own GPU must be able to write it, for the way back. */
static bool is_writable(const struct memory *m)
{
	for (size_t i = 0; i < m->access_count; i++)
		if (m->access[i].location.id == m->wanted.location.id && m->access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return true;
	return false;
}

static bool can_be_moved(struct memory *m)
{
	const int d = m->wanted.location.id;

	return m->mappings && (listed || !m->shared) && !m->tied && !m->opened && !m->ending && d >= 0 && d < MOST_GPUS && contexts[d] &&
	       (!m->companion || ordinary_lives(m)) && find_access(m) && is_writable(m);
}

/*
 * Memory that others may have, and of which the program has a handle and no mapping, is mapped while it moves, for its own
 * GPU. The driver would restore it, but not the same one for the others.
 */
static void lend_place(struct memory *m)
{
	const int d = m->wanted.location.id;
	const struct access own = {m->wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr at;

	if (m->mappings || !share_is(m) || m->opened || d < 0 || d >= MOST_GPUS || !contexts[d] || driver.cuMemAddressReserve(&at, m->size, 0, 0, 0))
		return;
	if (!memory_map(m, at)) {
		if (!driver.cuMemSetAccess(at, m->size, &own, 1)) {
			m->lent = (struct mapping){.at = at};
			m->mappings = &m->lent;
			return;
		}
		driver.cuMemUnmap(at, m->size);
	}
	driver.cuMemAddressFree(at, m->size);
}

static void return_place(struct memory *m)
{
	if (m->mappings != &m->lent)
		return;
	m->mappings = NULL;
	driver.cuMemUnmap(m->lent.at, m->size);
	driver.cuMemAddressFree(m->lent.at, m->size);
}

static void return_places(void)
{
	for (struct memory *m = memory_first(); m; m = m->next)
		return_place(m);
}

static int list(void)
{
	struct sharing s = {.down = 0};
	bool all = true;

	if (!take_records())
		return GUEST_BUSY;
	if (ipc_gives()) {
		parts_give(NULL);
		return GUEST_GIVING;
	}
	find_contexts();
	listed = true;
	for (struct memory *m = memory_first(); m && all; m = m->next)
		if (share_is(m)) {
			lend_place(m);
			all = share_add(&s, m, m->opened ? find_access(m) : can_be_moved(m));
			return_place(m);
		}
	all = all && share_try(); /* nothing is lost yet */
	keep_hang_up();
	cucriu_guest.sharing = s;
	parts_give(NULL);
	return all ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void count_down(void)
{
	uint32_t n = 0;

	for (const struct memory *m = memory_first(); m; m = m->next)
		n += m->opened && m->out;
	cucriu_guest.sharing.down = n;
}

/* Maps memory everywhere up to a mapping, or nowhere. */
static CUresult map_until(const struct memory *m, const struct mapping *end)
{
	const struct mapping *p;
	CUresult r = CUDA_SUCCESS;

	for (p = m->mappings; p != end; p = p->next) {
		if ((r = memory_map(m, p->at)))
			break;
		if (m->access_count && (r = driver.cuMemSetAccess(p->at, m->size, m->access, m->access_count))) {
			driver.cuMemUnmap(p->at, m->size);
			break;
		}
	}
	for (const struct mapping *q = m->mappings; r && q != p; q = q->next)
		driver.cuMemUnmap(q->at, m->size);
	return r;
}

static CUresult put_up(struct memory *m)
{
	size_t made = 0;
	CUresult r = CUDA_SUCCESS;

	for (; made < m->count && !r; made += !r)
		r = memory_make_part(m, made);
	if (!r && !(r = map_until(m, NULL)))
		return r;
	while (made)
		driver.cuMemRelease(m->parts[--made]);
	return r;
}

/* All of it, or nothing. */
static CUresult take_down(struct memory *m)
{
	for (struct mapping *p = m->mappings; p; p = p->next) {
		CUresult r = driver.cuMemUnmap(p->at, m->size);
		if (r) {
			map_until(m, p);
			return r;
		}
	}
	for (size_t i = 0; i < m->count; i++)
		driver.cuMemRelease(m->parts[i]);
	m->out = true;
	return CUDA_SUCCESS;
}

void agent_progress(void) { __atomic_add_fetch(&cucriu_guest.moved, 1, __ATOMIC_RELAXED); }

/* With the flags behind it. */
static size_t staging_whole(void) { return (staging_size + staging_size / slice + STEP - 1) / STEP * STEP; }

/* What is copied out of it begins anew at multiples of some size, and must begin in the same places each time. */
static CUresult make_staging(size_t size)
{
	staging_size = size;
	const size_t whole = staging_whole();
	char *at = mmap(NULL, whole + STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	staging = (char *)(((uintptr_t)at + STEP - 1) / STEP * STEP);
	if (staging != at)
		munmap(at, (size_t)(staging - at));
	munmap(staging + whole, (size_t)(at + STEP - staging));
	madvise(staging, whole, MADV_HUGEPAGE);
	madvise(staging, whole, MADV_DONTFORK);
	zeros = (bool *)staging + size;
	cucriu_guest.staging = (uintptr_t)staging;
	cucriu_guest.staging_end = (uintptr_t)staging + whole;
	return CUDA_SUCCESS;
}

/* Who looks at a process that was stopped in the middle must not find a place where nothing is mapped. */
static void forget_staging(void)
{
	cucriu_guest.state = PREPARED;
	cucriu_guest.staging = cucriu_guest.staging_end = 0;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	munmap(staging, staging_whole());
	staging = NULL;
	staging_size = 0;
}

/* Memory that is mapped and made anew as it will be later: what a stopped thread keeps us from is found before anything is lost. */
static CUresult rehearse(struct memory *m)
{
	CUdeviceptr at;
	CUhandle part;
	CUresult r = driver.cuMemAddressReserve(&at, STEP, 0, 0, 0);

	if (r)
		return r;
	const struct properties its = memory_properties(m);
	if (!(r = driver.cuMemCreate(&part, STEP, &its, 0))) {
		if (!(r = driver.cuMemMap(at, STEP, 0, part, 0))) {
			r = driver.cuMemSetAccess(at, STEP, m->access, m->access_count);
			driver.cuMemUnmap(at, STEP);
		}
		driver.cuMemRelease(part);
	}
	driver.cuMemAddressFree(at, STEP);
	return r;
}

/* With KEEPING, the GPUs keep a copy, if they can. */
static int out(bool keeping)
{
	size_t size = 0;
	unsigned long long rehearsed = 0; /* a bit for each GPU */
	struct memory *m;
	int r = 0;

	if (!take_records())
		return GUEST_BUSY;
	find_contexts();
	slice = memory_total() < (4ull << 30) ? 1ull << 20 : 4ull << 20;
	for (m = memory_first(); m; m = m->next) {
		agent_progress();
		if (listed)
			lend_place(m);
		if (!(m->moving = can_be_moved(m)))
			continue;
		m->staged = size;
		size += (m->size + slice - 1) / slice * slice;
	}
	if (!size)
		r = GUEST_NOTHING;
	for (m = memory_first(); m && !r; m = m->next)
		if (m->moving && !(rehearsed & 1ull << m->wanted.location.id)) {
			rehearsed |= 1ull << m->wanted.location.id;
			r = rehearse(m);
			agent_progress();
		}
	if (!r && !(r = make_staging(size)) && (r = copy_all(COPY_OUT)))
		forget_staging();
	if (!r)
		cucriu_guest.state = EMPTY;
	if (!r && keeping)
		cucriu_guest.descriptor = keep();
	for (m = memory_first(); m && !r; m = m->next)
		if (m->moving) {
			r = take_down(m);
			agent_progress();
		}
	if (!r)
		hash_end(&cucriu_guest.hashing, (uintptr_t)staging);
	if (cucriu_guest.state != EMPTY)
		return_places();
	parts_give(NULL);
	return r;
}

static void let_go(void)
{
	cucriu_guest.descriptor = -1;
	keep_hang_up();
}

static int in(void)
{
	struct memory *m;
	int r = 0;

	if (!take_records())
		return GUEST_BUSY;
	if (cucriu_guest.pieces && !files_take(cucriu_guest.pieces))
		r = GUEST_UNREAD;
	let_go();
	for (m = memory_first(); m && !r; m = m->next)
		if (m->out && !m->opened) {
			r = put_up(m);
			m->out = r != CUDA_SUCCESS;
			agent_progress();
		}
	if (!r)
		r = copy_all(COPY_IN);
	files_close();
	cucriu_guest.pieces = 0;
	if (!r) {
		return_places();
		forget_staging();
	}
	parts_give(NULL);
	return r;
}

static int expect_kept(void)
{
	cucriu_guest.descriptor = keep_connect();
	return cucriu_guest.descriptor < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* What does not come back so can come from the host: by IN. */
static int in_kept(void)
{
	if (!take_records())
		return GUEST_BUSY;
	int r = kept_take();
	for (struct memory *m = memory_first(); m && !r; m = m->next)
		if (m->out && !m->opened) {
			r = kept_put_up(m, contexts[m->wanted.location.id]);
			m->out = r != CUDA_SUCCESS;
			agent_progress();
		}
	let_go();
	if (!r) {
		return_places();
		forget_staging();
	}
	parts_give(NULL);
	return r;
}

/* What others own. It is theirs to keep the content. */
static int down(void)
{
	int r = CUDA_SUCCESS;

	if (!take_records())
		return GUEST_BUSY;
	for (struct memory *m = memory_first(); m && !r; m = m->next)
		if (share_is(m) && m->opened && !m->out) {
			r = find_access(m) ? take_down(m) : CUDA_ERROR_NOT_SUPPORTED;
			agent_progress();
		}
	count_down();
	parts_give(NULL);
	return r;
}

static int give(void)
{
	if (!take_records())
		return GUEST_BUSY;
	cucriu_guest.descriptor = share_give(cucriu_guest.sharing.from, &cucriu_guest.sharing.given);
	parts_give(NULL);
	return cucriu_guest.descriptor < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult put_up_opened(struct memory *m) { return map_until(m, NULL); }

static int take(void)
{
	if (!take_records())
		return GUEST_BUSY;
	int r = share_take(VERSION < 8 ? 1 : cucriu_guest.takes, put_up_opened);
	cucriu_guest.descriptor = -1;
	count_down();
	parts_give(NULL);
	return r;
}

static void gate(bool closed)
{
	cucriu_guest.closed = closed;
	if (closed)
		gate_close();
	else
		gate_open();
}

static int obey(enum command what)
{
	const enum state state = cucriu_guest.state;

	cucriu_guest.moved = 0;
	switch (what) {
	case PREPARE: return state == IDLE ? prepare() : CUDA_SUCCESS;
	case CLOSE: gate(true); return CUDA_SUCCESS;
	case PASS: gate_pass(cucriu_guest.passes); return CUDA_SUCCESS;
	case OUT:
	case OUT_KEPT: return state == PREPARED ? out(what == OUT_KEPT) : state == EMPTY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case LET_GO: let_go(); return CUDA_SUCCESS;
	case IN: return state == EMPTY ? in() : CUDA_SUCCESS;
	case CONNECT: return state != IDLE ? expect_kept() : CUDA_ERROR_INVALID_VALUE;
	case IN_KEPT: return state == EMPTY ? in_kept() : CUDA_SUCCESS;
	case LIST: return state == PREPARED ? list() : CUDA_ERROR_INVALID_VALUE;
	case GIVE: return state == PREPARED ? give() : CUDA_ERROR_INVALID_VALUE;
	case TAKE: return state == PREPARED ? take() : CUDA_ERROR_INVALID_VALUE;
	case DOWN: return state == PREPARED ? down() : CUDA_ERROR_INVALID_VALUE;
	case OPEN:
	case FINISH:
		if (state == EMPTY || cucriu_guest.sharing.down)
			break;
		let_go();
		gate(false);
		if (what == FINISH)
			finish();
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* The other side wakes it by tracing it for a moment: the wait begins anew, and finds the word changed. */
static void *agent(void *unused)
{
	(void)unused;
	cucriu_guest.kept = (uintptr_t)kept;
	cucriu_guest.kept_count = MOST_GPUS;
	begin_thread(0);
	end_of_work();
	for (;;) {
		const uint32_t done = cucriu_guest.done, command = __atomic_load_n(&cucriu_guest.command, __ATOMIC_ACQUIRE);
		if (command == done) {
			/* Once it was told something, it is soon told more. */
			struct timespec soon = {.tv_nsec = 500000};
			futex_wait(&cucriu_guest.command, done, cucriu_guest.state == IDLE && !cucriu_guest.closed ? NULL : &soon);
			continue;
		}
		cucriu_guest.result = obey(command & 15);
		__atomic_store_n(&cucriu_guest.done, command, __ATOMIC_RELEASE);
	}
	return NULL;
}

static bool started;

static bool start(size_t stack, void *(*routine)(void *), void *argument)
{
	__atomic_add_fetch(&at_work, ONE, __ATOMIC_ACQ_REL);
	const bool runs = start_with_stack(stack, routine, argument);
	if (!runs)
		end_of_work();
	return runs;
}

/* It returns when the threads have made all the calls that begin one. */
static void start_threads(void)
{
	const size_t stack = 1 << 20; /* a program may lock all that it maps */

	if (!__atomic_test_and_set(&started, __ATOMIC_ACQ_REL)) {
		for (unsigned wanted = processors(); copier_count < wanted && start(stack, copier, &copiers[copier_count]);)
			copier_count++;
		start(0, agent, NULL); /* it compiles for the GPU, which takes more */
	}
	await_copiers();
}

bool agent_started(void) { return copier_count && cucriu_guest.threads[0]; }

CUresult cuInit(unsigned flags)
{
	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuInit(flags);
	if (!r && !driver_forked()) {
		start_threads();
		ipc_start();
	}
	return r;
}

void agent_in_a_child(void)
{
	started = false;
	copier_count = at_work = 0;
	cucriu_guest = (struct mailbox){.magic = "cucriu\1", .version = VERSION, .descriptor = -1};
	gate_in_a_child();
}
