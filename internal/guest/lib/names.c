/*
 * names.c: how a program comes to the driver's functions, and to the guest's in their
 * place. It is linked with libcuda, or asks dlsym or cuGetProcAddress. What it is given is
 * compared by address with the functions that the guest serves. So a name that is not known, a
 * variant of one, or the function of a second libcuda stays what it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "agent.h"
#include "find.h"
#include "gate.h"
#include "guest.h"

struct driver driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const void *driver_base;
static int known; /* written under the lock, last */
static pid_t process;

/* A function of the driver, and the guest's. */
static const struct service {
	size_t offset; /* in driver */
	void *ours;
} services[] = {
#define CALL(result, name, ...)
#define SERVED(result, name, ...) {offsetof(struct driver, name), (void *)name},
#include "calls.h"
#undef CALL
};

static void *theirs(const struct service *s) { return *(void **)((char *)&driver + s->offset); }

/* What pthread_atfork calls in glibc. musl has the one and not the other, and a library that needs it ends a program. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle;

static void in_a_child(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	ipc_in_a_child();
	agent_in_a_child();
	if (!parts_inherited())
		process = getpid();
}

/* Takes a library for the driver if it is one. The first one counts. */
static void learn(const void *function)
{
	struct driver d = {0};
	const void *base = find_base(function);

	if (!base || !find_in(base, "cuInit") || getenv("LD_AUDIT"))
		return;
#define CALL(result, name, ...) *(void **)&d.name = find_in(base, #name);
#include "calls.h"
#undef CALL
	if (!d.cuMemCreate || !d.cuMemMap || !d.cuGetProcAddress_v2)
		return; /* a driver of before 2023 */
	pthread_mutex_lock(&lock);
	if (!known) {
		driver = d;
		driver_base = base;
		process = getpid();
		if (__register_atfork)
			__register_atfork(NULL, NULL, in_a_child, &__dso_handle);
		__atomic_store_n(&known, 1, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&lock);
}

static bool is_known(void) { return __atomic_load_n(&known, __ATOMIC_ACQUIRE); }

bool driver_known(void)
{
	if (!is_known()) {
		void *function = find_elsewhere("cuMemCreate");
		if (function)
			learn(function);
	}
	return is_known();
}

bool driver_forked(void) { return getpid() != process; }

void *served(void *function)
{
	if (!function)
		return NULL;
	if (!is_known())
		learn(function);
	if (!is_known())
		return function;
	for (size_t i = 0; i < sizeof services / sizeof *services; i++)
		if (theirs(&services[i]) == function)
			return gated(services[i].ours);
	return find_code(function) == driver_base ? gated(function) : function;
}

typedef void *(*lookup)(void *handle, const char *name);

static lookup real_dlsym(void)
{
	static lookup real;
	lookup r = __atomic_load_n(&real, __ATOMIC_RELAXED);

	if (!r) {
		*(void **)&r = find_from_the_start("dlsym");
		__atomic_store_n(&real, r, __ATOMIC_RELAXED);
	}
	return r;
}

/*
 * The real one looks at who has called it if it is asked for RTLD_NEXT or RTLD_DEFAULT: it is
 * jumped to, and finds the program's return address. The compiler does so: test/guest tries it.
 */
EXPORT void *dlsym(void *handle, const char *name)
{
	lookup real = real_dlsym();

	if (!real)
		return NULL;
	/* Where there is no driver, a program must not find one here. */
	if (!strncmp(name, "cu", 2) && !is_known() && find_in((void *)&dlsym, name) && !find_elsewhere(name))
		return real(handle, "CUDA is not here");
	if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || strncmp(name, "cu", 2))
		return real(handle, name);
	return served(real(handle, name));
}

EXPORT CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuGetProcAddress(name, out, version, flags);
	if (!r && out)
		*out = served(*out);
	return r;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuGetProcAddress_v2(name, out, version, flags, status);
	if (!r && out)
		*out = served(*out);
	return r;
}
