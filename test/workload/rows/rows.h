/* rows.h: what the programs of rows have in common. CALLS(X) are the driver's functions that one uses. */
#pragma once
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../../internal/kit/guest/lib/cuda.h"

#define X(name, ...) static CUresult (*name)(__VA_ARGS__);
CALLS(X)
#undef X

static void fail(const char *what)
{
	printf("%s\n", what);
	exit(1);
}

/* Finds the functions. Those that the driver lacks are NULL, if not all are needed. */
static void *load_driver(int all)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		fail(dlerror());
#define X(name, ...)                                                                                                   \
	if (!(*(void **)&name = dlsym(library, #name)) && all)                                                         \
		fail("no " #name);
	CALLS(X)
#undef X
	return library;
}
