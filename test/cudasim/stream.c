/* stream.c: streams, events, and the synchronizing calls with their hazard. */
#include "stream.h"

#include <pthread.h>
#include <stdlib.h>

#include "collective.h"
#include "context.h"

struct work {
	struct work *next;
	uint64_t submitted_ns, spin_ns;
	bool collective;
	uint64_t group, generation;
	uint32_t size;
};

struct sim_stream {
	struct sim_stream *next;
	uint64_t id; /* never used twice: events outlive streams */
	int device;
	bool alone; /* CU_STREAM_NON_BLOCKING: the null stream does not wait for it */
	bool dying; /* destroyed, but its work is not finished */
	struct work *head, **tail;
	uint64_t submitted, done; /* counts of work */
	uint64_t free_ns;	  /* when the last finished work ended */
};

struct sim_event {
	struct sim_event *next;
	uint64_t stream; /* id; 0 before the first record */
	uint64_t count;	 /* complete when the stream has done so much */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sim_stream null_stream[SIM_MAX_GPUS];
static struct sim_stream *streams;
static struct sim_event *events;
static struct work *spare; /* finished work, kept: the restore thread must not call free */
static uint64_t next_id = SIM_MAX_GPUS + 1;

static bool is_null(CUstream s) { return !s || s == STREAM_LEGACY || s == STREAM_PER_THREAD; }

/* All functions up to "entry points" are called with the mutex held, unless said otherwise. */

static struct sim_stream *find(CUstream handle)
{
	if (is_null(handle)) {
		CUcontext c = context_current();
		struct sim_stream *s = &null_stream[c ? context_device(c) : 0];
		if (!s->id) {
			s->id = (uint64_t)(s - null_stream) + 1;
			s->device = (int)(s - null_stream);
		}
		return s;
	}
	struct sim_stream *s = streams;
	while (s && (s != handle || s->dying))
		s = s->next;
	return s;
}

static bool finished(struct sim_stream *s, const struct work *w, uint64_t now)
{
	if (w->collective) {
		if (!collective_done(w->group, w->size, w->generation))
			return false;
		s->free_ns = now;
		return true;
	}
	uint64_t start = w->submitted_ns > s->free_ns ? w->submitted_ns : s->free_ns;
	if (now < start + w->spin_ns)
		return false;
	s->free_ns = start + w->spin_ns;
	return true;
}

static void advance(struct sim_stream *s, uint64_t now)
{
	while (s->head && finished(s, s->head, now)) {
		struct work *w = s->head;
		s->head = w->next;
		s->done++;
		w->next = spare;
		spare = w;
	}
}

static bool idle(struct sim_stream *s, uint64_t now)
{
	advance(s, now);
	return !s->head;
}

/* Of one device, or of all with -1. */
static bool all_idle(int device, bool those_alone)
{
	uint64_t now = now_ns();
	for (int i = 0; i < SIM_MAX_GPUS; i++)
		if ((device < 0 || device == i) && !idle(&null_stream[i], now))
			return false;
	for (struct sim_stream *s = streams; s; s = s->next)
		if ((device < 0 || s->device == device) && (those_alone || !s->alone) && !idle(s, now))
			return false;
	return true;
}

/* So many pieces of work wait in a stream; who submits more waits, inside the gate. */
#define MAX_PENDING 1024

static CUresult submit(CUstream handle, const struct work *what)
{
	pthread_mutex_lock(&mutex);
	struct sim_stream *s = find(handle);
	struct work *w = NULL;
	while (s && (advance(s, now_ns()), s->submitted - s->done >= MAX_PENDING)) {
		pthread_mutex_unlock(&mutex);
		sleep_ns(200000);
		pthread_mutex_lock(&mutex);
		s = find(handle);
	}
	if (s) {
		if ((w = spare))
			spare = w->next;
		else
			w = malloc(sizeof *w);
	}
	if (w) {
		*w = *what;
		w->next = NULL;
		w->submitted_ns = now_ns();
		if (!s->head)
			s->tail = &s->head;
		*s->tail = w;
		s->tail = &w->next;
		s->submitted++;
	}
	pthread_mutex_unlock(&mutex);
	return w ? CUDA_SUCCESS : s ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_spin(CUstream s, uint64_t ns)
{
	return submit(s, &(struct work){.spin_ns = ns});
}

CUresult stream_collective(CUstream s, uint64_t group, uint32_t rank, uint32_t size, uint64_t generation)
{
	CUresult r = submit(s, &(struct work){.collective = true, .group = group, .size = size, .generation = generation});
	return r ? r : collective_arrive(group, rank, generation);
}

bool stream_valid(CUstream handle)
{
	pthread_mutex_lock(&mutex);
	bool valid = find(handle) != NULL;
	pthread_mutex_unlock(&mutex);
	return valid;
}

void streams_drain(void)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		bool done = all_idle(-1, false);
		pthread_mutex_unlock(&mutex);
		if (done)
			return;
		sleep_ns(200000);
	}
}

bool streams_idle(void)
{
	if (pthread_mutex_trylock(&mutex)) /* its holder may be stopped */
		return false;
	bool done = all_idle(-1, true);
	pthread_mutex_unlock(&mutex);
	return done;
}

/* ---- entry points ---- */

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	CUcontext c;
	if (!out || flags > 1)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	struct sim_stream *s = calloc(1, sizeof *s);
	if (s) {
		pthread_mutex_lock(&mutex);
		s->id = next_id++;
		s->device = context_device(c);
		s->alone = flags & 1;
		s->next = streams;
		streams = s;
		pthread_mutex_unlock(&mutex);
		*out = s;
	} else {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
	(void)priority;
	return cuStreamCreate(out, flags);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	pthread_mutex_lock(&mutex);
	struct sim_stream *s = is_null(handle) ? NULL : find(handle);
	if (s)
		s->dying = true;
	else
		r = CUDA_ERROR_INVALID_HANDLE;
	uint64_t now = now_ns();
	for (struct sim_stream **at = &streams; *at;) {
		struct sim_stream *gone = *at;
		if (gone->dying && idle(gone, now)) {
			*at = gone->next;
			free(gone);
		} else {
			at = &gone->next;
		}
	}
	pthread_mutex_unlock(&mutex);
	gate_leave();
	return r;
}
ALIAS(cuStreamDestroy_v2) CUresult cuStreamDestroy(CUstream handle);

/* The stream with that id, if there still is one. */
static struct sim_stream *by_id(uint64_t id)
{
	if (id <= SIM_MAX_GPUS)
		return &null_stream[id - 1];
	struct sim_stream *s = streams;
	while (s && s->id != id)
		s = s->next;
	return s;
}

/* Mutex not held. Has stream ID done COUNT pieces of work? */
static bool reached(uint64_t id, uint64_t count)
{
	pthread_mutex_lock(&mutex);
	struct sim_stream *s = by_id(id);
	if (s)
		advance(s, now_ns());
	bool done = !s || s->done >= count;
	pthread_mutex_unlock(&mutex);
	return done;
}

/* Mutex not held. The lock does not hold this; a checkpoint meanwhile is fatal. */
static void wait_until(uint64_t id, uint64_t count)
{
	while (!reached(id, count)) {
		hazard_check();
		sleep_ns(200000);
	}
	hazard_check();
}

/* What a synchronizing call on a stream has to wait for. */
static CUresult stream_mark(CUstream handle, uint64_t *id, uint64_t *count)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	hazard_check();
	if (!context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&mutex);
	struct sim_stream *s = find(handle);
	if (s) {
		*id = s->id;
		*count = s->submitted;
	}
	pthread_mutex_unlock(&mutex);
	return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
	uint64_t id, count;
	CUresult r = stream_mark(handle, &id, &count);
	if (!r)
		wait_until(id, count);
	return r;
}

/* Captures are not simulated. */
EXPORT CUresult cuStreamIsCapturing(CUstream s, int *out)
{
	(void)s;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	static _Thread_local int own;
	if (!mode || *mode < 0 || *mode > 2)
		return CUDA_ERROR_INVALID_VALUE;
	int before = own;
	own = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
	uint64_t id, count;
	CUresult r = stream_mark(handle, &id, &count);
	if (r)
		return r;
	return reached(id, count) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuCtxSynchronize(void)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	hazard_check();
	CUcontext c = context_current();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	for (;;) {
		pthread_mutex_lock(&mutex);
		bool done = all_idle(context_device(c), true);
		pthread_mutex_unlock(&mutex);
		hazard_check();
		if (done)
			return CUDA_SUCCESS;
		sleep_ns(200000);
	}
}

static struct sim_event *find_event(CUevent handle)
{
	struct sim_event *e = events;
	while (e && e != handle)
		e = e->next;
	return e;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	CUcontext c;
	(void)flags;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	struct sim_event *e = calloc(1, sizeof *e);
	if (e) {
		pthread_mutex_lock(&mutex);
		e->next = events;
		events = e;
		pthread_mutex_unlock(&mutex);
		*out = e;
	} else {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	pthread_mutex_lock(&mutex);
	struct sim_event **at = &events;
	while (*at && *at != handle)
		at = &(*at)->next;
	struct sim_event *e = *at;
	if (e)
		*at = e->next;
	pthread_mutex_unlock(&mutex);
	free(e);
	gate_leave();
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
ALIAS(cuEventDestroy_v2) CUresult cuEventDestroy(CUevent handle);

EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream)
{
	CUcontext c;
	CUresult r = context_enter(&c);
	if (r)
		return r;
	pthread_mutex_lock(&mutex);
	struct sim_event *e = find_event(handle);
	struct sim_stream *s = find(stream);
	if (e && s) {
		e->stream = s->id;
		e->count = s->submitted;
	} else {
		r = CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_mutex_unlock(&mutex);
	gate_leave();
	return r;
}

static CUresult event_mark(CUevent handle, uint64_t *id, uint64_t *count)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	hazard_check();
	pthread_mutex_lock(&mutex);
	struct sim_event *e = find_event(handle);
	if (e) {
		*id = e->stream;
		*count = e->count;
	}
	pthread_mutex_unlock(&mutex);
	return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventSynchronize(CUevent handle)
{
	uint64_t id, count;
	CUresult r = event_mark(handle, &id, &count);
	if (!r && id)
		wait_until(id, count);
	return r;
}

EXPORT CUresult cuEventQuery(CUevent handle)
{
	uint64_t id, count;
	CUresult r = event_mark(handle, &id, &count);
	if (r)
		return r;
	return !id || reached(id, count) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	CUcontext c;
	(void)flags;
	CUresult r = context_enter(&c); /* effects are ordered by submission already */
	if (r)
		return r;
	pthread_mutex_lock(&mutex);
	if (!find(stream) || !find_event(event))
		r = CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_unlock(&mutex);
	gate_leave();
	return r;
}
