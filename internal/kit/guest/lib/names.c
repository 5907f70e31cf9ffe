/*
 * names.c: how a program comes to the driver's functions, and to the guest's in their
 * place. It is linked with libcuda, or asks dlsym or cuGetProcAddress. What it is given is
 * compared by address with the functions that the guest serves. So a name that is not known, a
 * variant of one, or the function of a second libcuda stays what it is.
 *
 * Who stands between a program and the driver (another preloaded library: a tracer, a quota) stays there: a call
 * through a name that is exported here goes first to the next who has that name, as without the guest, and what that
 * one takes for the driver is the guest.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "agent.h"
#include "find.h"
#include "front.h"
#include "gate.h"
#include "guest.h"

struct driver driver;

static const void *driver_base;
static int known; /* written last */
static pid_t process;

/* A function of the driver, and the guest's; NULL if it is only held back by the gate. */
static const struct service {
	const char *name;
	size_t offset; /* in driver */
	void *ours;
} services[] = {
#define CALL(result, name, ...)
#define SERVED(result, name, ...) {#name, offsetof(struct driver, name), (void *)name},
#define HELD_BACK(result, name, ...) {#name, offsetof(struct driver, name), NULL},
#include "calls.h"
#undef CALL
};
#define SERVICES (sizeof services / sizeof *services)

static void *theirs(const struct service *s) { return *(void **)((char *)&driver + s->offset); }

/* What pthread_atfork calls in glibc. musl has no such function, and a library that needs it ends a program there. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern void *__dso_handle;

static void in_a_child(void)
{
	ipc_in_a_child();
	agent_in_a_child();
	if (!parts_inherited())
		process = getpid();
}

/* Where a call of a function goes that the program asked the driver for. */
static void *entry_of(const struct service *s) { return gated(s->ours ? s->ours : theirs(s)); }

/* The exported names lead to who comes next, if that is not the driver. */
static void set_fronts(void)
{
	for (size_t i = 0; i < SERVICES; i++) {
		void *next = find_next(services[i].name, NULL);
		if (theirs(&services[i]))
			front_leads_to(i, next && next != theirs(&services[i]) ? next : entry_of(&services[i]));
	}
}

/*
 * Takes a library for the driver if it is one. The first one counts, and stays loaded from then on. Nothing is locked:
 * threads that learn of the same library write the same.
 */
static void learn(const void *function)
{
	static int registered;
	struct driver d = {0};
	const void *base = find_base(function), *none = NULL;

	if (!base || !find_is_driver(base) || !find_in(base, "cuInit") || getenv("LD_AUDIT"))
		return;
#define SERVED(result, name, ...) *(void **)&d.name = find_in(base, #name);
#define HELD_BACK SERVED
#define CALL(result, name, ...)                                                                                        \
	if (!(*(void **)&d.name = find_in(base, #name)))                                                               \
		return;
#include "calls.h"
#undef CALL
	if (!d.cuMemCreate || !d.cuMemMap || !d.cuGetProcAddress_v2 || !find_keep(function))
		return; /* a driver of before 2023, or a part of one */
	if (!__atomic_compare_exchange_n(&driver_base, &none, base, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) && none != base)
		return;
	driver = d;
	process = getpid();
	if (__register_atfork && !__atomic_exchange_n(&registered, 1, __ATOMIC_ACQ_REL))
		__register_atfork(NULL, NULL, in_a_child, &__dso_handle);
	set_fronts();
	__atomic_store_n(&known, 1, __ATOMIC_RELEASE);
}

static bool is_known(void) { return __atomic_load_n(&known, __ATOMIC_ACQUIRE); }

bool driver_known(void)
{
	if (!is_known()) {
		void *function = find_driver();
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
	for (size_t i = 0; i < SERVICES; i++)
		if (theirs(&services[i]) == function)
			return entry_of(&services[i]);
	return find_code(function) == driver_base ? gated(function) : function;
}

static CUresult no_driver(void) { return CUDA_ERROR_NOT_INITIALIZED; }

/* The driver is not there yet, or is not served: whoever else has such a function may bring it, or be it. */
void *front(size_t number)
{
	void *other;

	if (driver_known())
		return theirs(&services[number]) ? front_target(number) : (void *)no_driver;
	other = find_elsewhere(services[number].name);
	if (other && other == find_next(services[number].name, NULL) && find_driver())
		front_leads_to(number, other); /* for good: what is loaded with the program stays */
	return other ? other : (void *)no_driver;
}

int cancel_off(void)
{
	int before = PTHREAD_CANCEL_ENABLE;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

void cancel_back(const int *before) { pthread_setcancelstate(*before, &(int){0}); }

typedef void *(*lookup)(void *handle, const char *name);
typedef void *(*versioned_lookup)(void *handle, const char *name, const char *version);

/* A function that this library takes the place of: the one behind it, or the C library's own. */
static void *taken(void **cache, const char *name, bool own)
{
	void *function = __atomic_load_n(cache, __ATOMIC_RELAXED);

	if (!function) {
		function = find_next(name, own ? "dlinfo" : NULL);
		__atomic_store_n(cache, function, __ATOMIC_RELAXED);
	}
	return function;
}

#define TAKEN(name, own)                                                                                               \
	({                                                                                                             \
		static void *cache;                                                                                    \
		taken(&cache, name, own);                                                                              \
	})

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void *own_dlsym(void *handle, const char *name);
static void *own_dlvsym(void *handle, const char *name, const char *version);

/* In place of a function that was looked up. Whoever takes dlsym over himself wants the C library's. */
static void *instead_of(void *function)
{
	if (function && function == TAKEN("dlsym", true))
		return function == TAKEN("dlsym", false) ? dlsym : own_dlsym;
	if (function && function == TAKEN("dlvsym", true))
		return function == TAKEN("dlvsym", false) ? dlvsym : own_dlvsym;
	return served(function);
}

static bool is_looked_after(const char *name)
{
	return (name[0] == 'c' && name[1] == 'u') || same(name, "dlsym") || same(name, "dlvsym");
}

/* Where there is no driver, a program must not find one here. */
static bool is_here_alone(const char *name)
{
	return !is_known() && find_in((void *)&dlsym, name) && !find_elsewhere(name);
}

/*
 * The real one looks at who has called it if it is asked for RTLD_NEXT or RTLD_DEFAULT: it is
 * jumped to, and finds the program's return address. The compiler does so: test/guest tries it. What is RTLD_NEXT for
 * somebody between the program and the driver is found here; and the real dlsym is the same for all.
 */
#define LOOK_UP(real, handle, name, ...)                                                                               \
	void *behind, *found;                                                                                          \
	if (!(real))                                                                                                   \
		return NULL;                                                                                           \
	if (!is_looked_after(name))                                                                                    \
		return (real)(handle, name, ##__VA_ARGS__);                                                            \
	if (handle == RTLD_NEXT && (behind = find_behind(__builtin_return_address(0), name)) && instead_of(behind) != behind) \
		return instead_of(behind);                                                                             \
	if ((handle == RTLD_NEXT || handle == RTLD_DEFAULT) && name[0] == 'c')                                         \
		return (real)(handle, is_here_alone(name) ? "CUDA is not here" : name, ##__VA_ARGS__);                 \
	found = (real)(handle, name, ##__VA_ARGS__);                                                                   \
	if (found && found == find_in((void *)&dlsym, name) && is_here_alone(name))                                    \
		return (real)(handle, "CUDA is not here", ##__VA_ARGS__);                                              \
	return instead_of(found)

EXPORT void *dlsym(void *handle, const char *name)
{
	lookup real = (lookup)TAKEN("dlsym", false);
	LOOK_UP(real, handle, name);
}

EXPORT void *dlvsym(void *handle, const char *name, const char *version)
{
	versioned_lookup real = (versioned_lookup)TAKEN("dlvsym", false);
	LOOK_UP(real, handle, name, version);
}

/* What others who take these functions over find in the C library. */
static void *own_dlsym(void *handle, const char *name)
{
	lookup real = (lookup)TAKEN("dlsym", true);
	LOOK_UP(real, handle, name);
}

static void *own_dlvsym(void *handle, const char *name, const char *version)
{
	versioned_lookup real = (versioned_lookup)TAKEN("dlvsym", true);
	LOOK_UP(real, handle, name, version);
}

/* A function that was given in place of the driver's is the driver's to who asks whose it is. */
static const void *given_for(const void *address)
{
	const void *function = gate_target_of(address);
	const size_t number = front_number_of(address);

	if (number < SERVICES && is_known())
		return theirs(&services[number]);
	for (size_t i = 0; i < SERVICES && function; i++)
		if (services[i].ours == function)
			return theirs(&services[i]);
	return function ? function : address;
}

EXPORT int dladdr(const void *address, Dl_info *info)
{
	int (*real)(const void *, Dl_info *);

	*(void **)&real = TAKEN("dladdr", false);
	return real ? real(given_for(address), info) : 0;
}

EXPORT int dladdr1(const void *address, Dl_info *info, void **more, int flags)
{
	int (*real)(const void *, Dl_info *, void **, int);

	*(void **)&real = TAKEN("dladdr1", false);
	return real ? real(given_for(address), info, more, flags) : 0;
}

/*
 * AddressSanitizer ends a program in whose list of libraries its own does not come first, unless it is told not to. It
 * asks a program for options in this way, too, and a job may have ASAN_OPTIONS of its own.
 */
EXPORT const char *__asan_default_options(void)
{
	static char options[4096] = "verify_asan_link_order=0";
	const char *(*next)(void) = (const char *(*)(void))find_next(__func__, NULL);
	const char *more = next ? next() : "";
	size_t n = sizeof "verify_asan_link_order=0" - 1;

	for (options[n] = ':'; *more && n + 2 < sizeof options;)
		options[++n] = *more++;
	options[n + 1] = 0;
	return options;
}

CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuGetProcAddress(name, out, version, flags);
	if (!r && out)
		*out = served(*out);
	return r;
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
	if (!driver_known())
		return CUDA_ERROR_NOT_INITIALIZED;
	CUresult r = driver.cuGetProcAddress_v2(name, out, version, flags, status);
	if (!r && out)
		*out = served(*out);
	return r;
}
