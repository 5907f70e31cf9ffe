/* cupti.c: the simulated libcupti.so.13: a process that a profiler was in cannot be locked, even when it has left again. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "abi.h"

EXPORT int cuptiSubscribe(void **subscriber, void *callback, void *user)
{
	(void)callback, (void)user;
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void (*profiled)(void) = cuda ? (void (*)(void))dlsym(cuda, "cudasim_profiled") : NULL;
	if (cuda)
		dlclose(cuda);
	if (!profiled || !subscriber)
		return 1;
	profiled();
	*subscriber = subscriber;
	return 0;
}

EXPORT int cuptiUnsubscribe(void *subscriber) { return !subscriber; }
EXPORT int cuptiFinalize(void) { return 0; }
