#include "profiler.h"

#include <dlfcn.h>
#include <stddef.h>

#include "report.h"

static void *library(void)
{
	static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);

		if (lib)
			return lib;
	}
	die(EXIT_USAGE, "--profiler: no libcupti: %s (set LD_LIBRARY_PATH)", dlerror());
}

static void callback(void *user, int domain, unsigned id, const void *data)
{
	(void)user, (void)domain, (void)id, (void)data;
}

void profiler_attach(enum profiler profiler)
{
	int (*subscribe)(void **, void (*)(void *, int, unsigned, const void *), void *);
	int (*unsubscribe)(void *), (*finalize)(void);
	void *lib, *subscriber;
	int r;

	if (profiler == PROFILER_NONE)
		return;
	lib = library();
	*(void **)&subscribe = dlsym(lib, "cuptiSubscribe");
	*(void **)&unsubscribe = dlsym(lib, "cuptiUnsubscribe");
	*(void **)&finalize = dlsym(lib, "cuptiFinalize");
	if (!subscribe || !unsubscribe || !finalize)
		die(EXIT_USAGE, "--profiler: libcupti lacks cuptiSubscribe, cuptiUnsubscribe or cuptiFinalize");
	r = subscribe(&subscriber, callback, NULL);
	if (r)
		die(EXIT_CUDA, "cuptiSubscribe: %d", r);
	if (profiler == PROFILER_ENDED && ((r = unsubscribe(subscriber)) || (r = finalize())))
		die(EXIT_CUDA, "cuptiFinalize: %d", r);
}
