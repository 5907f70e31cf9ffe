/* hash.h: which slices of memory have not changed since it was out before. For the agent alone. */
#pragma once
#include "parts.h"

/* What the agent is asked for, and says; internal/core/agent has the same. */
struct hashing {
	uint64_t generation; /* how the content of now is to be called; 0: it is not compared with */
	uint64_t base;	     /* the content of which there is a copy, */
	uint64_t base_start, base_end; /* of what was between these addresses */
	uint64_t random[4];  /* of which a process takes the first that it gets */
	uint64_t copies_all; /* also what is the same */
	uint64_t slice;	     /* the answer: its size, */
	uint64_t count;	     /* how many there are, */
	uint64_t same;	     /* and where it says of each whether it is, and where it was in the staging memory then; or 0 */
};

/*
 * Finds out which of COUNT slices are the same, with a context for each GPU and ROOM for what the GPUs
 * answer, which they can write. Without success, none is.
 */
void hash_begin(struct hashing *h, CUcontext *contexts, size_t slice, size_t count, void *room);
/* Is a slice of staging there already, or 0? */
bool hash_same(const struct hashing *h, size_t number);
bool hash_zero(const struct hashing *h, size_t number);
/* How much there is to copy. */
uint64_t hash_content(const struct hashing *h);
/* All is out, to STAGING: it is what the next time is compared with. */
void hash_end(struct hashing *h, uint64_t staging);
