/*
 * ipc.c: CUDA IPC. It works while the processes run. A process that has memory
 * imported is locked and checkpointed like any other and then never restores.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "imports.h"

struct handle {
	uint64_t offset;
	uint64_t size;
	uint32_t magic;
	int32_t gpu;
	char exporter[40];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "IPC handle");
#define HANDLE_MAGIC 0x69706331u

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
	CUcontext context;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	struct allocation *a = memory_find(p);
	if (!a || a->kind != MEMORY_DEVICE || !a->context || a->pool) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		struct handle h = {.magic = HANDLE_MAGIC, .gpu = sim.device[a->device].gpu, .offset = a->offset, .size = a->asked};
		memcpy(h.exporter, sim.name, sizeof h.exporter - 1);
		memcpy(out, &h, sizeof h);
	}
	gate_leave();
	return r;
}

/* What a context has opened already: it has one mapping of each. */
struct opened {
	const struct handle *handle;
	CUcontext context;
	CUdeviceptr at;
};

static CUresult open_again(struct allocation *a, void *arg)
{
	struct opened *o = arg;
	if (a->kind == MEMORY_IMPORTED && a->context == o->context && a->offset == o->handle->offset && !strcmp(a->exporter, o->handle->exporter)) {
		a->again++;
		o->at = a->va;
	}
	return CUDA_SUCCESS;
}

/* Of an event it is only taken: nothing here opens one. */
EXPORT CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
	CUcontext context;
	if (!out || !event)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	memset(out, 0, sizeof *out);
	gate_leave();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle in, unsigned flags)
{
	CUcontext context;
	struct handle h;
	memcpy(&h, &in, sizeof h);
	h.exporter[sizeof h.exporter - 1] = 0;
	if (!p || flags > 1 || h.magic != HANDLE_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = context_enter(&context);
	if (r)
		return r;
	struct opened before = {&h, context, 0};
	pthread_mutex_lock(&importing);
	if (!strcmp(h.exporter, sim.name)) {
		r = CUDA_ERROR_INVALID_CONTEXT; /* not in the process that exported it */
	} else if (memory_each(open_again, &before), before.at) {
		*p = before.at;
	} else {
		struct allocation *a = memory_new(MEMORY_IMPORTED, context_device(context), context, h.size);
		if (a) {
			a->offset = h.offset;
			a->exporter_gpu = h.gpu;
			memcpy(a->exporter, h.exporter, sizeof h.exporter);
			*p = a->va;
			import_note(a);
		} else {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	pthread_mutex_unlock(&importing);
	gate_leave();
	return r;
}
ALIAS(cuIpcOpenMemHandle_v2) CUresult cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle in, unsigned flags);
