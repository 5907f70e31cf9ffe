/* context.c: primary and created contexts, and the stack that each thread has. */
#include "context.h"

#include <pthread.h>
#include <stdlib.h>

#include "held.h"
#include "memory.h"

struct sim_context {
	struct sim_context *next;
	int device;
	bool primary;
	int retained;
};

#define STACK 32

static struct sim_context *contexts;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

static bool alive(CUcontext c)
{
	pthread_mutex_lock(&mutex);
	struct sim_context *at = contexts;
	while (at && at != c)
		at = at->next;
	pthread_mutex_unlock(&mutex);
	return at != NULL;
}

CUcontext context_current(void) { return depth ? stack[depth - 1] : NULL; }
int context_device(CUcontext c) { return c->device; }

CUresult context_enter(CUcontext *c)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	*c = context_current();
	if (!*c || !alive(*c)) {
		gate_leave();
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	return CUDA_SUCCESS;
}

/* Inside the gate. */
static CUresult create(CUcontext *out, int device, bool primary)
{
	struct sim_context *c = calloc(1, sizeof *c);
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = device_account(device, SIM_CONTEXT_BYTES);
	if (r) {
		free(c);
		return r;
	}
	c->device = device;
	c->primary = primary;
	c->retained = 1;
	pthread_mutex_lock(&mutex);
	c->next = contexts;
	contexts = c;
	sim.device[device].contexts++;
	pthread_mutex_unlock(&mutex);
	held_note();
	*out = c;
	return CUDA_SUCCESS;
}

static void destroy(CUcontext c)
{
	int device = c->device;
	memory_drop_context(c);
	pthread_mutex_lock(&mutex);
	struct sim_context **at = &contexts;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	int left = --sim.device[device].contexts;
	pthread_mutex_unlock(&mutex);
	held_note();
	device_account(device, -(int64_t)SIM_CONTEXT_BYTES);
	if (!left && !sim.device[device].bytes)
		account_drop(&sim.host, sim.device[device].gpu, sim.name);
	free(c);
}

static struct sim_context *primary_of(int device)
{
	pthread_mutex_lock(&mutex);
	struct sim_context *c = contexts;
	while (c && !(c->primary && c->device == device))
		c = c->next;
	pthread_mutex_unlock(&mutex);
	return c;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!out || !sim_device_of(ordinal)) {
		r = out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	} else {
		pthread_mutex_lock(&once);
		*out = primary_of(sim.visible[ordinal]);
		if (*out)
			(*out)->retained++;
		else
			r = create(out, sim.visible[ordinal], true);
		pthread_mutex_unlock(&once);
	}
	gate_leave();
	return r;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct sim_context *c = sim_device_of(ordinal) ? primary_of(sim.visible[ordinal]) : NULL;
	if (!c)
		r = sim_device_of(ordinal) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_DEVICE;
	else if (--c->retained == 0)
		destroy(c);
	gate_leave();
	return r;
}
ALIAS(cuDevicePrimaryCtxRelease_v2) CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal);

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	struct sim_context *c = sim_device_of(ordinal) ? primary_of(sim.visible[ordinal]) : NULL;
	if (c)
		destroy(c);
	gate_leave();
	return sim_device_of(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
ALIAS(cuDevicePrimaryCtxReset_v2) CUresult cuDevicePrimaryCtxReset(CUdevice ordinal);

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!flags || !active || !sim_device_of(ordinal)) {
		r = flags && active ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	} else {
		*flags = 0;
		*active = primary_of(sim.visible[ordinal]) != NULL;
	}
	gate_leave();
	return r;
}

static CUresult push(CUcontext c)
{
	if (depth == STACK)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = c;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice ordinal)
{
	(void)flags;
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!out || !sim_device_of(ordinal))
		r = out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	else
		r = create(out, sim.visible[ordinal], false);
	if (!r)
		r = push(*out);
	gate_leave();
	return r;
}
ALIAS(cuCtxCreate_v2) CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice ordinal);

#if SIM_DRIVER >= 570 /* CUDA 12.5 */
EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice ordinal)
{
	return params ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, ordinal);
}
#endif

EXPORT CUresult cuCtxDestroy_v2(CUcontext c)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!c || !alive(c) || c->primary) {
		r = CUDA_ERROR_INVALID_CONTEXT;
	} else {
		if (context_current() == c)
			depth--;
		destroy(c);
	}
	gate_leave();
	return r;
}
ALIAS(cuCtxDestroy_v2) CUresult cuCtxDestroy(CUcontext c);

/* These touch only the calling thread: the lock does not hold them. */
EXPORT CUresult cuCtxSetCurrent(CUcontext c)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (c && !alive(c))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!c)
		depth = depth ? depth - 1 : 0;
	else if (depth)
		stack[depth - 1] = c;
	else
		return push(c);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = context_current();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext c)
{
	CUresult r = sim_ready();
	return r ? r : c && alive(c) ? push(c) : CUDA_ERROR_INVALID_CONTEXT;
}
ALIAS(cuCtxPushCurrent_v2) CUresult cuCtxPushCurrent(CUcontext c);

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (out)
		*out = stack[depth];
	return CUDA_SUCCESS;
}
ALIAS(cuCtxPopCurrent_v2) CUresult cuCtxPopCurrent(CUcontext *out);

EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	CUcontext c = context_current();
	if (!c || !alive(c))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < sim.nvisible; i++)
		if (sim.visible[i] == c->device)
			*out = i;
	return CUDA_SUCCESS;
}

/* Green contexts: a context on a part of the multiprocessors, of which there are none here. */
enum { RESOURCE_SM = 1 };

EXPORT CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *out, int type)
{
	CUresult r = sim_ready();
	if (r)
		return r;
	if (!out || type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_device_of(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = (CUdevResource){.type = type};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDevResourceGenerateDesc(void **out, CUdevResource *resources, unsigned n)
{
	if (!out || !resources || !n || resources->type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &contexts; /* no more than a token */
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxCreate(CUcontext *out, void *description, CUdevice ordinal, unsigned flags)
{
	CUresult r = gate_enter();
	if (r)
		return r;
	if (!out || description != &contexts || flags != 1)
		r = CUDA_ERROR_INVALID_VALUE;
	else
		r = sim_device_of(ordinal) ? create(out, sim.visible[ordinal], false) : CUDA_ERROR_INVALID_DEVICE;
	gate_leave();
	return r;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *out, CUcontext green)
{
	if (!out || !green || !alive(green))
		return CUDA_ERROR_INVALID_VALUE;
	*out = green;
	return CUDA_SUCCESS;
}
