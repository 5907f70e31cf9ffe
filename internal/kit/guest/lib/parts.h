/* parts.h: the records of memory that is made of parts. */
#pragma once
#include "guest.h"

#ifndef PART /* the tests take less */
#define PART (256ull << 20)
#endif
#ifndef LEAST /* what is smaller stays as it is */
#define LEAST (16ull << 20)
#endif
#define STEP (2ull << 20) /* of the sizes that the driver takes for a part */

/* Memory is mapped as a whole: the driver refuses anything else. */
struct mapping {
	struct mapping *next;
	CUdeviceptr at;
};

/* One that is made whole has one part, which is as large as the memory. */
struct memory {
	struct memory *next;
	size_t size, part_size, count;
	struct properties wanted;
	unsigned references;	  /* of the program; the parts stay while it has one, or a mapping */
	struct mapping *mappings; /* one if it is ordinary memory */
	CUhandle *parts;
	/* Of ordinary memory, for which a program has an address and no handle: alloc.c. */
	CUdeviceptr companion;
	CUcontext context;
	CUdevice primary_of;	 /* the device whose primary context that is, or -1 */
	unsigned long long born; /* in the order of all: a handle of a context can be used again */
	unsigned long long id;	 /* of the companion: its address can, too */
	size_t asked;
	bool synchronous; /* SYNC_MEMOPS is set: memops.c */
	bool ending;	  /* a thread gives it back */
	bool shared;	  /* other processes may have it */
	bool tied;	  /* and not by way of ipc.c, or other memory of the driver's is tied to it */
	/* Of memory that the agent moves to the host and back: agent.c. */
	bool moving, out;
	struct mapping lent; /* meanwhile, of what has none */
	size_t staged; /* where its copy is */
	/* When it was out before: hash.c. */
	uint64_t hashed;	/* the generation */
	uint64_t hashed_at;	/* where it was then */
	size_t hashed_first; /* its first slice in the table */
	struct access access[64];
	size_t access_count;
	/* Of ordinary memory that another process has opened, on both sides: ipc.c. */
	char owner[24];
	unsigned long long number;
	unsigned opened; /* how often it was opened here: it is another process's */
	size_t taken;	 /* how many of its parts are here again: share.c */
};

/* The rest of a function has the records for itself. */
#define ALONE                                                                                                          \
	UNCANCELLED;                                                                                                   \
	__attribute__((cleanup(parts_give), unused)) const bool alone = parts_take()

/* The beginning of a call. The driver answers a forked child, where nobody would give back the lock that another thread had. */
#define BEGIN(in_a_child)                                                                                              \
	if (!driver_known())                                                                                           \
		return CUDA_ERROR_NOT_INITIALIZED;                                                                     \
	if (driver_forked())                                                                                           \
		return in_a_child;                                                                                     \
	ALONE

bool parts_take(void);
bool parts_try(void); /* false: another thread has them */
void parts_give(const bool *unused);

/* Only what another GPU may reach is worth parts, and what there can be: they are taken one by one. */
bool memory_is_ours(size_t size, CUdevice device);
/*
 * What it takes to serve memory later is there, from cuInit on. Where it could not be, by some limit of the program's,
 * the driver has all memory itself.
 */
bool memory_can_be_served(void);
/* A record without parts. NULL: no room for it. */
struct memory *memory_new(size_t size, const struct properties *wanted);
/* A record with its parts. */
CUresult memory_create(struct memory **out, size_t size, const struct properties *wanted);
/* Those of its parts. */
struct properties memory_properties(const struct memory *m);
CUresult memory_make_part(struct memory *m, size_t part);
/* Gives back a record, which is in no list, and its parts. */
void memory_release(struct memory *m);
size_t memory_length(const struct memory *m, size_t part);
/* Maps the parts one behind the other. */
CUresult memory_map(const struct memory *m, CUdeviceptr at);

/* Gives the program its first handle of a record that is in no list yet. */
CUresult memory_hand_out(struct memory *m, CUhandle *handle);

/* For who has the records for himself. */
void memory_enter(struct memory *m);
void memory_leave(struct memory *m);
struct memory *memory_first(void);
/* The memory that is mapped at AT, and where its mapping begins. */
struct memory *memory_at(CUdeviceptr at, CUdeviceptr *begin);
