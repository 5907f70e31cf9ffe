/*
 * memops.c: SYNC_MEMOPS, the attribute of memory that other devices write to without a call.
 * The driver does not take it for parts. It means that copies and fills which need not wait
 * for their end do, so here they do.
 */
#include "alloc.h"

static unsigned marks; /* memory that has it, or had it when it ended */

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at)
{
	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (attribute != SYNC_MEMOPS || !value || driver_forked())
		return driver.cuPointerSetAttribute(value, attribute, at);
	ALONE;
	struct memory *m = ordinary_at(at);
	if (!m)
		return driver.cuPointerSetAttribute(value, attribute, at);
	CUresult r = driver.cuPointerSetAttribute(value, attribute, m->companion);
	if (r)
		return r;
	m->synchronous = *(const int *)value;
	if (m->synchronous)
		__atomic_add_fetch(&marks, 1, __ATOMIC_RELAXED);
	return r;
}

static bool marked(CUdeviceptr to, CUdeviceptr from)
{
	if (driver_forked())
		return false;
	ALONE;
	const struct memory *a = ordinary_at(to), *b = ordinary_at(from);
	return (a && a->synchronous) || (b && b->synchronous);
}

#define IN_STREAM(name, parameters, arguments, to, from, stream)                                                       \
	CUresult name parameters                                                                                       \
	{                                                                                                              \
		CUresult r = driver_known() ? driver.name arguments : CUDA_ERROR_NOT_INITIALIZED;                      \
		return !r && __atomic_load_n(&marks, __ATOMIC_RELAXED) && marked(to, from) ? driver.cuStreamSynchronize((void *)stream) : r; \
	}
/* A copy or fill goes into the stream of all threads, or into that of its own. */
#define MEMOP(name, parameters, arguments, to, from)                                                                   \
	IN_STREAM(name, parameters, arguments, to, from, 1)                                                            \
	IN_STREAM(name##_ptds, parameters, arguments, to, from, 2)
#include "memops.h"
