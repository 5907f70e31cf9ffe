/*
 * memops.c: SYNC_MEMOPS, the attribute of memory that other devices write to without a call.
 * The driver does not take it for parts. It means that copies and fills that need not wait
 * for their end do, so once a program has asked for it, they do here.
 */
#include "alloc.h"

static bool asked; /* for any memory: who asks for one asks for all that he sends */

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at)
{
	CUdeviceptr companion;

	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (attribute != SYNC_MEMOPS || !(companion = ordinary_companion(at)))
		return driver.cuPointerSetAttribute(value, attribute, at);
	CUresult r = driver.cuPointerSetAttribute(value, attribute, companion);
	if (!r)
		__atomic_store_n(&asked, true, __ATOMIC_RELAXED);
	return r;
}

static CUresult ended(CUresult r, uintptr_t stream)
{
	return r || !__atomic_load_n(&asked, __ATOMIC_RELAXED) || driver_forked() ? r : driver.cuStreamSynchronize((void *)stream);
}

/* A copy or fill goes into one of two streams. */
#define MEMOP(name, parameters, arguments)                                                                             \
	CUresult name parameters                                                                                       \
	{                                                                                                              \
		return driver_known() ? ended(driver.name arguments, 1) : CUDA_ERROR_NOT_INITIALIZED;                  \
	}                                                                                                              \
	CUresult name##_ptds parameters                                                                                \
	{                                                                                                              \
		return driver_known() ? ended(driver.name##_ptds arguments, 2) : CUDA_ERROR_NOT_INITIALIZED;           \
	}
#include "memops.h"
