/*
 * The guest stands between a program and the CUDA driver. README.md draws it.
 * calls.h is the table of the calls in which it takes part.
 */
#pragma once
#include <stdbool.h>

#include "cuda.h"

#define EXPORT __attribute__((visibility("default")))

/*
 * The driver's own functions, by the names under which its library exports them. All are
 * there from the moment at which the library is known: see names.c.
 */
struct driver {
#define CALL(result, name, ...) result (*name)(__VA_ARGS__);
#include "calls.h"
#undef CALL
};

extern struct driver driver;

/* The guest's functions. On amd64 the names that a program finds are those of front.c, which lead there. */
#ifdef __x86_64__
#define OURS(name) __asm__("guest_" #name) __attribute__((visibility("hidden")))
#else
#define OURS(name) EXPORT
#endif
#define CALL(result, name, ...)
#define SERVED(result, name, ...) result name(__VA_ARGS__) OURS(name);
#include "calls.h"
#undef CALL

/* A thread that is cancelled does not end in the rest of a block: what it has there would never be given back. */
#define UNCANCELLED UNCANCELLED_(__COUNTER__)
#define UNCANCELLED_(n) UNCANCELLED__(n)
#define UNCANCELLED__(n) __attribute__((cleanup(cancel_back), unused)) const int cancellable_##n = cancel_off()
int cancel_off(void);
void cancel_back(const int *before);

/* Is the driver known? Learns of one that the program is linked with. */
bool driver_known(void);
/* Is this a child that has forked from a process with memory here? The driver answers all its calls. */
bool driver_forked(void);

/* In a forked child: is there memory? If not, the child begins anew. */
bool parts_inherited(void);

/* In a forked child: it answers nobody. */
void ipc_in_a_child(void);

/* A function that the program was given, or the guest's in its place. */
void *served(void *function);
