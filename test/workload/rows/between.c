/*
 * between.c: libraries that a user puts between a program and the driver, by LD_PRELOAD. Each says which calls it sees, and lets
 * no allocation of an odd size pass, as a tracer, a quota and an injector of errors do. BY_... is how it finds the driver.
 * With BY_STUB it is a part of a library that opens the driver when it is first called, as TensorFlow's are, and passes all on.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../internal/kit/guest/lib/cuda.h"

static void *next(const char *name);

#ifndef BY_STUB
static CUresult seen(const char *name, CUresult r)
{
	printf("between: %s: %d\n", name, r);
	fflush(stdout);
	return r;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	CUresult (*f)(CUdeviceptr *, size_t);

	*(void **)&f = next(__func__);
	return seen(__func__, size % 2 ? CUDA_ERROR_OUT_OF_MEMORY : f(out, size));
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
	CUresult (*f)(CUdeviceptr);

	*(void **)&f = next(__func__);
	return seen(__func__, f(at));
}
#endif

#if defined BY_NEXT
static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }
#elif defined BY_OPEN || defined BY_STUB
static void *next(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name); }
#elif defined BY_DLSYM /* and gives itself to who asks for the driver's functions */
static void *real(void *handle, const char *name)
{
	static void *(*f)(void *, const char *);

	if (!f)
		*(void **)&f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	if (!f)
		*(void **)&f = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	return f(handle, name);
}

static void *next(const char *name) { return real(dlopen("libcuda.so.1", RTLD_LAZY), name); }

void *dlsym(void *handle, const char *name)
{
	if (!strcmp(name, "cuMemAlloc_v2"))
		return cuMemAlloc_v2;
	if (!strcmp(name, "cuMemFree_v2"))
		return cuMemFree_v2;
	return real(handle, name);
}
#elif defined BY_PATH /* it is called as the driver is, and has a few of its functions */
static void *next(const char *name)
{
	static void *driver;
	char dirs[4096], path[4200], *left = dirs;

	snprintf(dirs, sizeof dirs, "%s:/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/nvidia/lib64", getenv("LD_LIBRARY_PATH") ?: "");
	for (char *dir; !driver && (dir = strsep(&left, ":"));) {
		snprintf(path, sizeof path, "%s/libcuda.so.1", dir);
		driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	return dlsym(driver, name);
}
#endif

#if defined BY_PATH || defined BY_STUB
#define PASSED(name, parameters, arguments)                                                                            \
	CUresult name parameters                                                                                       \
	{                                                                                                              \
		CUresult(*f) parameters;                                                                               \
		*(void **)&f = next(__func__);                                                                         \
		return f arguments;                                                                                    \
	}
PASSED(cuInit, (unsigned flags), (flags))
PASSED(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device), (out, device))
PASSED(cuCtxSetCurrent, (CUcontext context), (context))
PASSED(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t n), (to, from, n))
#ifdef BY_STUB
PASSED(cuMemAlloc_v2, (CUdeviceptr * out, size_t size), (out, size))
PASSED(cuMemFree_v2, (CUdeviceptr at), (at))
#endif
#endif
